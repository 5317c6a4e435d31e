"""The benches of the scheduling laboratory as commands: cost models, simulations against reality, the scheduler.

Must not know Typer.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from mini_vllm.cli.render import write
from mini_vllm.cli.session import fetch
from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError

OTHERS = ("peers", "neighbours", "server", "speculative", "show RECORD")


def run(what: str, model: str | None, *, threads: int | None, target: Path | None) -> None:
    """Run a bench by its name; `ConfigError` names all if it is none."""
    if what not in OURS:
        choices = ", ".join(f"`bench {name}`" for name in (*OTHERS, *OURS))
        raise ConfigError(f"bench is given {what!r}; write one of {choices}")
    OURS[what](model, threads, target)


def _cost_model(model: str | None, threads: int | None, target: Path | None) -> None:
    from mini_vllm.bench import simulating
    from mini_vllm.simulation.costs import default_file

    found = simulating.cost_model(_config(model, threads))
    path = target or default_file()
    found.save(path)
    about = found.about
    errors = about["relative_error"]
    write(f"{path}: fitted to {about['steps']} steps, error median {errors['median']:.1%}, p90 {errors['p90']:.1%}\n")


def _simulation(model: str | None, threads: int | None, target: Path | None) -> None:
    from mini_vllm.bench import simulating

    record = simulating.truth_check(_config(model, threads))
    _keep(record, target)
    write(simulating.render(record))


def _scheduler(model: str | None, threads: int | None, target: Path | None) -> None:
    from mini_vllm.bench import control_plane, machine

    rows = list(control_plane.rows())
    _keep({"kind": "scheduler", "machine": machine.describe(), "rows": rows}, target)
    write(control_plane.render(rows))


OURS = {"cost-model": _cost_model, "simulation": _simulation, "scheduler": _scheduler}


def _config(model: str | None, threads: int | None) -> EngineConfig:
    """The default settings of a server, but for the model; fetched if need be."""
    config = EngineConfig.from_options(**({"model": model} if model else {}), threads=threads)
    fetch(config)
    return config


def _keep(record: Mapping[str, object], target: Path | None) -> None:
    if target is None:
        return
    try:
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from None
