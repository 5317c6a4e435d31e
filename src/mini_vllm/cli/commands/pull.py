"""`mini-vllm pull`: have a model on this machine."""

from typing import Annotated

import typer

from mini_vllm.cli.arguments import WORDS_HELP, no_more, take_model
from mini_vllm.cli.options import Options, with_options
from mini_vllm.cli.render import write
from mini_vllm.cli.session import fetch


@with_options("model")
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]", hidden=True, help=WORDS_HELP)] = None,
    *,
    options: Options,
) -> None:
    """Fetch a model and print where it lies.

    MODEL is an alias, a Hugging Face repository id, or something local. An interrupted download goes on where it
    stopped; nothing half-fetched is ever used.
    """
    no_more(take_model(list(words or []), options))
    write(fetch(options.engine_config()) + "\n")
