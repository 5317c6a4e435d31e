"""Every bench as a command: which options it takes, what it measures, and its record and table.

Must not know Typer.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mini_vllm.cli.render import write
from mini_vllm.cli.session import fetch
from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the command line asks of a bench. `given`: the options that it names itself, as they are written."""

    argument: Path | None = None  # a record or a model
    quick: bool = False
    smoke: bool = False
    target: Path | None = None  # of the record
    only: tuple[str, ...] = ()
    threads: int | None = None
    rounds: int | None = None
    given: frozenset[str] = frozenset()

    @property
    def num_threads(self) -> int:
        """Of the engines: those asked for, or our own number."""
        from mini_vllm.kernels.native_threads import default_threads

        return self.threads or default_threads()

    def repeats(self, *, whole: int, quick: int) -> int:
        """The rounds asked for, or so many by default."""
        return self.rounds or (quick if self.quick else whole)


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs it (False: it failed), and which options it takes."""

    run: Callable[[Work], bool]
    takes: frozenset[str]


def run(what: str, work: Work) -> bool:
    """Run a bench by its name; False if it failed. `ConfigError` names all if it is none, an option not for it, and a
    record that could not be written, before anything is measured.
    """
    if what not in BENCHES:
        raise ConfigError(f"bench is given {what!r}; write one of {_commands(BENCHES)}")
    _refuse_idle_options(what, work)
    EngineConfig.from_options(threads=work.threads)
    target = _target(what, work)
    if target is not None:
        refuse_unwritable(target)
    return BENCHES[what].run(work)


def _target(what: str, work: Work) -> Path | None:
    """The file that this bench will write."""
    if "--json" not in BENCHES[what].takes:
        return None
    if what != "cost-model" or work.target is not None:
        return work.target
    from mini_vllm.simulation.costs import default_file

    return default_file()


def refuse_unwritable(path: Path) -> None:
    """`ConfigError` where a record could not be written. Makes its folders; a file that is there keeps what it holds,
    and none is made.
    """
    try:
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        elif not path.exists():  # what else is there, a pipe or a device, is opened only once
            place = Path(os.path.realpath(path))  # where a link leads
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch(exist_ok=False)
            place.unlink()
    except (FileExistsError, NotADirectoryError):
        raise _unwritable(path, "a part of the path is a file, not a folder") from None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"cannot write {path}: {reason}; give --json a file that can be written")


def _refuse_idle_options(what: str, work: Work) -> None:
    """`ConfigError` for what would change nothing. Variables of the environment are meant for whoever knows them."""
    for name in sorted(work.given - BENCHES[what].takes):
        takers = _commands(bench for bench, entry in BENCHES.items() if name in entry.takes)
        raise ConfigError(f"{name} changes nothing in `bench {what}`; leave it out, or use it with {takers}")
    if work.argument is not None and what not in ("show", *_WITH_MODEL):
        takers = f"a record goes with `bench show`, a model with {_commands(_WITH_MODEL)}"
        raise ConfigError(
            f"`bench {what}` is given {str(work.argument)!r}, which it does not read; leave it out: {takers}"
        )
    if work.smoke and {"--quick", "--full"} & work.given:
        raise ConfigError("--smoke has an extent of its own; leave out --quick and --full, or leave out --smoke")
    if what == "server" and "--threads" in work.given and work.only and "model" not in work.only:
        raise ConfigError(
            f"--threads is for the part model of `bench server`, not for {', '.join(work.only)}; add model to --only, "
            "or leave out --threads"
        )


def _commands(names: Iterable[str]) -> str:
    return ", ".join(f"`bench {name}{' RECORD' if name == 'show' else ''}`" for name in names)


def _peers(work: Work) -> bool:
    from mini_vllm.bench import compare, report
    from mini_vllm.bench.plan import Selection

    selection = Selection.parse(work.only)
    found = compare.Comparison(selection=selection, quick=work.quick, smoke=work.smoke, threads=work.num_threads).run()
    _keep(work.target, partial(compare.write_record, found), report.render(found))
    return not (work.smoke and any("error" in row for row in found["ratios"]))


def _neighbours(work: Work) -> bool:
    from mini_vllm.bench import compare, report

    comparison = compare.Comparison(quick=work.quick, threads=work.num_threads)
    found = comparison.beside_neighbours(work.repeats(whole=10, quick=2))
    _keep(work.target, partial(compare.write_record, found), report.render(found))
    return True


def _server(work: Work) -> bool:
    from mini_vllm.bench import surface

    return _show_figures(surface.measure(quick=work.quick, threads=work.num_threads, only=work.only), work.target)


def _speculative(work: Work) -> bool:
    from mini_vllm.bench import speculative

    if work.target is not None:
        joined(work.target, {"figures": []})  # a record that cannot be added to is found now
    measured = speculative.measure(quick=work.quick, threads=work.num_threads, only=work.only)
    return _show_figures(measured if work.target is None else joined(work.target, measured), work.target)


def _show(work: Work) -> bool:
    if work.argument is None:
        raise ConfigError("`bench show` needs the record to show; write `bench show RECORD`")
    write(shown(work.argument))
    return True


def _cost_model(work: Work) -> bool:
    from mini_vllm.bench import simulating

    found, path = simulating.cost_model(_config(work)), _target("cost-model", work)
    steps, errors = found.about["steps"], found.about["relative_error"]
    text = f"{path}: fitted to {steps} steps, error median {errors['median']:.1%}, p90 {errors['p90']:.1%}\n"
    _keep(path, found.save, text)
    return True


def _simulation(work: Work) -> bool:
    from mini_vllm.bench import simulating

    record = simulating.truth_check(_config(work), rounds=work.repeats(whole=3, quick=1))
    _keep(work.target, partial(_write_json, record), simulating.render(record))
    return True


def _scheduler(work: Work) -> bool:
    from mini_vllm.bench import beside, control_plane, machine

    config = _config(work)
    found = [*control_plane.figures(), *beside.figures(config)]
    if not work.quick:
        found.append(control_plane.cluster_figure())
    return _show_figures(
        {"machine": machine.describe(), "figures": [figure.as_json() for figure in found]}, work.target
    )


_EXTENT = frozenset({"--quick", "--full"})
_COMMON = _EXTENT | {"--json", "--threads"}
BENCHES = {
    "peers": Bench(_peers, _COMMON | {"--smoke", "--only"}),
    "neighbours": Bench(_neighbours, _COMMON | {"--rounds"}),
    "server": Bench(_server, _COMMON | {"--only"}),
    "speculative": Bench(_speculative, _COMMON | {"--only"}),
    "show": Bench(_show, frozenset()),
    "cost-model": Bench(_cost_model, _COMMON - _EXTENT),
    "simulation": Bench(_simulation, _COMMON | {"--rounds"}),
    "scheduler": Bench(_scheduler, _COMMON),
}
_WITH_MODEL = ("cost-model", "simulation", "scheduler")


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
    config = EngineConfig.from_options(**({"model": str(work.argument)} if work.argument else {}), threads=work.threads)
    fetch(config)
    return config


def _show_figures(record: dict[str, Any], target: Path | None) -> bool:
    from mini_vllm.bench import figures

    _keep(target, partial(figures.write_record, record), figures.render(record))
    return True


def _write_json(record: Mapping[str, object], path: Path) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _keep(target: Path | None, save: Callable[[Path], None], text: str) -> None:
    """Write a record, if it is wanted, and show what was measured, also where that fails: the disk may be full."""
    if target is None:
        return write(text)
    try:
        save(target)
    except OSError as error:
        raise _unwritable(target, error.strerror or str(error)) from None
    finally:
        write(text)
