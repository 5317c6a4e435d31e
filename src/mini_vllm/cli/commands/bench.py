"""`mini-vllm bench`: our engine against others on this machine, and beside busy neighbours."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.cli import benching


def command(  # noqa: PLR0913 - one for each option
    ctx: typer.Context,
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
            help="neighbours: pairs of each row (10; 2 with --quick); simulation: repetitions, whose medians "
            "count (3; 1 with --quick)",
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
    written = {
        "quick": "--quick" if quick else "--full",
        "smoke": "--smoke",
        "json_file": "--json",
        "only": "--only",
        "threads": "--threads",
        "rounds": "--rounds",
    }
    work = benching.Work(
        argument=record,
        quick=quick,
        smoke=smoke,
        target=json_file,
        only=tuple(name for words in only or [] for name in words.split(",") if name),
        threads=threads,
        rounds=rounds,
        given=frozenset(option for name, option in written.items() if _is_written(ctx, name)),
    )
    if not benching.run(what, work):
        raise typer.Exit(1)


def _is_written(ctx: typer.Context, name: str) -> bool:
    """Whether the command line has this option, and not a variable of the environment."""
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
