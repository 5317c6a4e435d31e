"""`mini-vllm bench`: our engine against others on this machine, and beside busy neighbours."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.cli import benching
from mini_vllm.cli.render import write
from mini_vllm.config import EngineConfig


def command(  # noqa: PLR0913 - one for each option
    what: Annotated[
        str,
        typer.Argument(
            metavar="peers|neighbours|server|speculative|show|cost-model|simulation|scheduler", show_default=False
        ),
    ],
    record: Annotated[Path | None, typer.Argument(metavar="[RECORD|MODEL]", show_default=False)] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick/--full", envvar="MINI_VLLM_QUICK", help="one round of each work, at most 25 minutes"),
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            envvar="MINI_VLLM_SMOKE",
            help="peers: two works beside transformers and a prebuilt llama.cpp, in three minutes; fails if one does",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", envvar="MINI_VLLM_BENCH_JSON", help="write the record to this file")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            envvar="MINI_VLLM_ONLY",
            help="peers: only these works, weights and peers, such as single,q4_1; server: only these parts, of cost, "
            "memory, health, model; speculative: only these drafters and weights, added to the record of "
            "--json; may be repeated",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", envvar="MINI_VLLM_THREADS", help="of every engine; default: our own"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            envvar="MINI_VLLM_ROUNDS",
            min=1,
            help="neighbours: pairs of each row (10); simulation: repetitions, whose medians count (3)",
        ),
    ] = None,
) -> None:
    """Measure our engine against other engines, in turn, and against what this machine allows.

    peers: the same weights, prompts and threads for every engine that `make peers` installed. neighbours: beside
    processes that spin. server: what HTTP costs beside the engine, and a thread against a process. speculative:
    guessing ahead against not guessing. show RECORD: the table of a record written with --json.
    cost-model [MODEL]: what steps cost here, for `mini-vllm simulate --virtual`. simulation [MODEL]: such a simulation
    against a real replay. scheduler [MODEL]: what plan() and commit() cost, what a long prompt does to those who write,
    and, without --quick, how long 100,000 simulated requests take.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    from mini_vllm.bench import compare, figures, report
    from mini_vllm.bench.plan import Selection
    from mini_vllm.kernels.native_threads import default_threads

    count = EngineConfig.from_options(threads=threads).model.threads or default_threads()
    if what == "peers":
        found = compare.Comparison(selection=Selection.parse(only or []), quick=quick, smoke=smoke, threads=count).run()
        if json_file is not None:
            compare.write_record(found, json_file)
        write(report.render(found))
        if smoke and any("error" in row for row in found["ratios"]):
            raise typer.Exit(1)
    elif what == "server":
        from mini_vllm.bench import surface

        measured = surface.measure(quick=quick, only=[name for part in only or [] for name in part.split(",")])
        if json_file is not None:
            figures.write_record(measured, json_file)
        write(figures.render(measured))
    elif what == "speculative":
        from mini_vllm.bench import speculative

        measured = speculative.measure(quick=quick, only=[name for part in only or [] for name in part.split(",")])
        if json_file is not None:
            measured = benching.joined(json_file, measured)
            figures.write_record(measured, json_file)
        write(figures.render(measured))
    elif what == "neighbours":
        write(report.table(compare.neighbours(threads=count, rounds=10 if rounds is None else rounds)))
    elif what == "show" and record is not None:
        write(benching.shown(record))
    else:
        model = None if record is None else str(record)
        repeats = 3 if rounds is None else rounds
        work = benching.Work(model=model, threads=threads, target=json_file, rounds=repeats, quick=quick)
        benching.run(what, work)
