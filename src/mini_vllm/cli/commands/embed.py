"""`mini-vllm embed`: texts as vectors, one JSON object a line."""

from typing import Annotated

import typer

from mini_vllm.cli.arguments import WORDS_HELP, take_model_and_text
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.render import write_json
from mini_vllm.cli.session import Session
from mini_vllm.types import Pooling


@with_options(*ENGINE)
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [TEXT]", hidden=True, help=WORDS_HELP)] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", envvar="MINI_VLLM_PROMPT", help="the text")] = None,
    pooling: Annotated[
        str, typer.Option("--pooling", envvar="MINI_VLLM_POOLING", help="of the final hidden states: mean or last")
    ] = "mean",
    dimensions: Annotated[
        int | None, typer.Option("--dimensions", envvar="MINI_VLLM_DIMENSIONS", help="keep the first so many numbers")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", envvar="MINI_VLLM_NORMALIZE", help="scale to length 1")
    ] = True,
    *,
    options: Options,
) -> None:
    """Turn a text into a vector: the model's hidden states after its final norm, as one JSON object.

    MODEL may also be given with --model, TEXT with --prompt or through standard input.
    """
    text = take_model_and_text(list(words or []), options, text=prompt)
    chosen: Pooling = pooling  # type: ignore[assignment]
    with Session(options.engine_config()) as session:
        found = session.run(session.llm.embed(text, pooling=chosen, dimensions=dimensions, normalize=normalize))
    write_json({"embedding": found.vector, "num_tokens": len(found.prompt_token_ids), "pooling": pooling})
