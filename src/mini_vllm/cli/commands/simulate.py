"""`mini-vllm simulate`: traffic, replayed."""

from typing import Annotated

import typer

from mini_vllm.cli.options import ENGINE, Options, with_options


@with_options(*ENGINE, "simulation")
def command(
    traffic: Annotated[
        str,
        typer.Argument(
            metavar="TRAFFIC",
            show_default=False,
            help="a .json or .csv file, or a generator such as poisson:rate=8,requests=100",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json/--text", envvar="MINI_VLLM_JSON", help="print one JSON object with the figures")
    ] = False,
    *,
    options: Options,
) -> int:
    """Replay traffic, in real time on a model or, with --virtual, under a virtual clock with a cost model.

    TRAFFIC is a JSON array of {at_ms, prompt, max_new_tokens, temperature?, top_p?, priority?, key?}, a CSV trace of
    times, prompt tokens and output tokens, or a generator: poisson, bursty, diurnal, shared_prefix or multi_turn. Shows
    a timeline of the requests, a table of the ticks and a summary; writes them under --out-dir. Exit code 2 if a
    request failed.
    """
    from mini_vllm.cli.simulating import Simulation

    return Simulation(traffic, options, as_json=as_json).run()
