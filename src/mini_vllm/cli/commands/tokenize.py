"""`mini-vllm tokenize`: ids, pieces, text, round trip."""

from typing import Annotated, Any

import typer

from mini_vllm.cli.arguments import WORDS_HELP, take_model_and_text
from mini_vllm.cli.options import Options, with_options
from mini_vllm.cli.render import write, write_json
from mini_vllm.cli.session import fetch
from mini_vllm.config import EngineConfig
from mini_vllm.text import Tokenizer


@with_options("model")
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [TEXT]", hidden=True, help=WORDS_HELP)] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", envvar="MINI_VLLM_PROMPT", help="the text")] = None,
    add_special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            envvar="MINI_VLLM_SPECIAL_TOKENS",
            help="add BOS and EOS where the model wants them",
        ),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json/--text", envvar="MINI_VLLM_JSON", help="print one JSON object")
    ] = False,
    *,
    options: Options,
) -> int:
    """Show a text's token ids and pieces, and whether it survives the round trip.

    MODEL may also be given with --model, TEXT with --prompt or through standard input. No weights are loaded.
    """
    text = take_model_and_text(list(words or []), options, text=prompt)
    tokenizer = load_tokenizer(options.engine_config())
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    decoded = tokenizer.decode(ids)
    same = decoded == text or tokenizer.decode(ids, skip_special_tokens=False) == text
    if as_json:
        pieces = [tokenizer.piece(token_id) for token_id in ids]
        write_json({"token_ids": ids, "pieces": pieces, "text": decoded, "num_tokens": len(ids), "round_trip": same})
        return 0
    _print(tokenizer, ids, decoded, same=same)
    return 0


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The tokenizer that the engine would use."""
    from mini_vllm import weights
    from mini_vllm.engine.assembly import load_text

    fetch(config)
    checkpoint: Any = weights.open_checkpoint(weights.resolve(config.model.model, revision=config.model.revision))
    try:
        return load_text(config, checkpoint)[0]
    finally:
        checkpoint.close()


def _print(tokenizer: Tokenizer, ids: list[int], decoded: str, *, same: bool) -> None:
    lines = [f"{token_id:>8}  {tokenizer.piece(token_id)!r}" for token_id in ids]
    lines += [
        f"ids: {' '.join(map(str, ids))}",
        f"text: {decoded!r}",
        f"tokens: {len(ids)}",
        f"round trip: {'yes' if same else 'no'}",
    ]
    write("\n".join(lines) + "\n")
