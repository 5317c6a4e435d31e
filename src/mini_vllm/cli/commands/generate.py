"""`mini-vllm generate`: one prompt, its completion, its figures."""

from typing import Annotated, Any

import typer

from mini_vllm.cli.arguments import WORDS_HELP, take_model_and_text
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.render import note, write, write_json
from mini_vllm.cli.session import Answer, Session
from mini_vllm.types import SamplingParams, TextDelta

DEFAULTS = {"max_tokens": 256, "temperature": 0.0}  # greedy, unless the model's own settings or the user say otherwise

WORDS = typer.Argument(metavar="[MODEL] [PROMPT]", hidden=True, help=WORDS_HELP)


@with_options(*ENGINE, sampling=True)
def command(
    words: Annotated[list[str] | None, WORDS] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", envvar="MINI_VLLM_PROMPT", help="the prompt")] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", envvar="MINI_VLLM_STREAM", help="show text as it is made")
    ] = True,
    show_footer: Annotated[
        bool, typer.Option("--footer/--no-footer", envvar="MINI_VLLM_FOOTER", help="show the figures (standard error)")
    ] = True,
    as_chat: Annotated[
        bool, typer.Option("--chat/--raw", envvar="MINI_VLLM_AS_CHAT", help="apply the model's chat template")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json/--text", envvar="MINI_VLLM_JSON", help="print one JSON object instead of text")
    ] = False,
    *,
    options: Options,
) -> None:
    """Complete one prompt.

    MODEL may also be given with --model, PROMPT with --prompt or through standard input. Greedy and at most 256 tokens
    unless the model's generation config or a flag says otherwise.
    """
    text = take_model_and_text(list(words or []), options, text=prompt)
    config = options.engine_config()
    SamplingParams(**options.sampling)  # a bad value is found before the model is loaded
    with Session(config) as session:
        params = session.params(options.sampling, **DEFAULTS)
        asked: Any = session.llm.render_chat([{"role": "user", "content": text}]) if as_chat else text
        live = stream and params.n == 1 and not as_json and params.logprobs is None
        try:
            found = session.ask(asked, params, show=_show if live else lambda delta: None)
        except KeyboardInterrupt:
            write("\n" if live else "")
            raise
        if as_json:
            write_json(_as_json(found, text))
        else:
            write("\n" if live else _all_texts(session, found, params))
        if show_footer:
            note(session.footer(found))


def _show(delta: TextDelta) -> None:
    if delta.text:
        write(delta.text)


def _all_texts(session: Session, found: Answer, params: SamplingParams) -> str:
    if params.n == 1 and params.logprobs is None:
        return found.texts[0] + "\n"
    lines = []
    for index, text in enumerate(found.texts):
        lines.append(f"[{index}] {text}")
        lines += [_logprob_line(session, entry) for entry in found.logprobs[index]]
    return "\n".join(lines) + "\n"


def _logprob_line(session: Session, entry: Any) -> str:
    piece = session.llm.tokenizer.piece
    others = "  ".join(f"{piece(token_id)!r} {logprob:.3f}" for token_id, logprob in entry.top)
    return f"  {entry.logprob:9.4f}  {piece(entry.token_id)!r}" + (f"   [{others}]" if others else "")


def _as_json(found: Answer, prompt: str) -> dict[str, Any]:
    choices = [
        {
            "text": text,
            "token_ids": found.token_ids[index],
            "finish_reason": found.finish_reasons[index],
            "stop_reason": found.stop_reasons[index],
        }
        for index, text in enumerate(found.texts)
    ]
    return {
        "prompt": prompt,
        "choices": choices,
        "num_prompt_tokens": found.num_prompt_tokens,
        "num_cached_tokens": found.num_cached_tokens,
        "num_tokens": found.num_tokens,
        "time_to_first_token": found.time_to_first_token and round(found.time_to_first_token, 6),
        "tokens_per_second": round(found.tokens_per_second, 3),
    }
