"""The benches of the scheduling laboratory as commands: cost models, simulations against reality, the scheduler.

Must not know Typer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.cli.render import write
from mini_vllm.cli.session import fetch
from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError

OTHERS = ("peers", "neighbours", "server", "speculative", "show RECORD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the command line asks of a bench."""

    model: str | None = None
    threads: int | None = None
    target: Path | None = None  # of the record
    rounds: int = 3
    quick: bool = False


def run(what: str, work: Work) -> None:
    """Run a bench by its name; `ConfigError` names all if it is none."""
    if what not in OURS:
        choices = ", ".join(f"`bench {name}`" for name in (*OTHERS, *OURS))
        raise ConfigError(f"bench is given {what!r}; write one of {choices}")
    OURS[what](work)


def _cost_model(work: Work) -> None:
    from mini_vllm.bench import simulating
    from mini_vllm.simulation.costs import default_file

    found = simulating.cost_model(_config(work))
    path = work.target or default_file()
    found.save(path)
    about = found.about
    errors = about["relative_error"]
    write(f"{path}: fitted to {about['steps']} steps, error median {errors['median']:.1%}, p90 {errors['p90']:.1%}\n")


def _simulation(work: Work) -> None:
    from mini_vllm.bench import simulating

    record = simulating.truth_check(_config(work), rounds=1 if work.quick else work.rounds)
    _keep(record, work.target)
    write(simulating.render(record))


def _scheduler(work: Work) -> None:
    from mini_vllm.bench import beside, control_plane, figures, machine

    config = _config(work)
    found = [*control_plane.figures(), *beside.figures(config)]
    if not work.quick:
        found.append(control_plane.cluster_figure())
    record = {"machine": machine.describe(), "figures": [figure.as_json() for figure in found]}
    if work.target is not None:
        figures.write_record(record, work.target)
    write(figures.render(record))


OURS = {"cost-model": _cost_model, "simulation": _simulation, "scheduler": _scheduler}


def shown(path: Path) -> str:
    """A record as its table, whichever bench wrote it; `ConfigError` if none did."""
    from mini_vllm.bench import figures, report, simulating
    from mini_vllm.simulation import fitted

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    kinds: dict[str, Callable[[Any], str]] = {
        "ratios": report.render,
        "figures": figures.render,
        "checks": simulating.render,
        "knots": lambda record: fitted.describe(fitted.read(path)),
    }
    kind = next((name for name in kinds if isinstance(record, dict) and name in record), None)
    if kind is None:
        raise ConfigError(
            f"{path} is no record of `mini-vllm bench`: it has none of {', '.join(kinds)}; write one with --json"
        )
    try:
        return kinds[kind](record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"{path} is a damaged record of `mini-vllm bench` ({type(error).__name__}: {error}); measure again"
        ) from None


def joined(path: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """What was measured, joined to the parts that the record at `path`, if there is one, has already."""
    from mini_vllm.bench import figures

    if not path.exists():
        return measured
    try:
        return figures.joined(json.loads(path.read_text(encoding="utf-8")), measured)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot add to {path}: {type(error).__name__}: {error}; give another file") from None


def _config(work: Work) -> EngineConfig:
    """The default settings of a server, but for the model; fetched if need be."""
    config = EngineConfig.from_options(**({"model": work.model} if work.model else {}), threads=work.threads)
    fetch(config)
    return config


def _keep(record: Mapping[str, object], target: Path | None) -> None:
    if target is None:
        return
    try:
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from None
