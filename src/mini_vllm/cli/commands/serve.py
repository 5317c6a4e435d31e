"""`mini-vllm serve`: the HTTP server."""

from typing import Annotated

import typer

from mini_vllm.cli.arguments import WORDS_HELP, no_more, take_model
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.session import fetch


@with_options(*ENGINE, "server")
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]", hidden=True, help=WORDS_HELP)] = None,
    *,
    options: Options,
) -> int:
    """Start the OpenAI-compatible HTTP server.

    MODEL may also be given with --model. Open / in a browser for a chat page. Ctrl-C lets running requests finish.
    """
    no_more(take_model(list(words or []), options))
    config, server_config = options.engine_config(), options.server_config()
    from mini_vllm import server

    return server.run(config, server_config, prepare=lambda: fetch(config))
