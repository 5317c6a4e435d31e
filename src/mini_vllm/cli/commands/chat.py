"""`mini-vllm chat`: a conversation, streaming."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.cli.arguments import WORDS_HELP, no_more, take_model
from mini_vllm.cli.conversation import Conversation, run_command
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.render import note, on_terminal, write
from mini_vllm.cli.session import Session
from mini_vllm.config import cache_folder
from mini_vllm.errors import ChatTemplateError, UserError
from mini_vllm.types import SamplingParams, TextDelta

DEFAULTS = {"max_tokens": 1024, "temperature": 0.7, "top_p": 0.95}


@with_options(*ENGINE, sampling=True)
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]", hidden=True, help=WORDS_HELP)] = None,
    system: Annotated[
        str | None, typer.Option("--system", "-s", envvar="MINI_VLLM_SYSTEM", help="system message")
    ] = None,
    show_footer: Annotated[
        bool, typer.Option("--footer/--no-footer", envvar="MINI_VLLM_FOOTER", help="show figures after each answer")
    ] = False,
    *,
    options: Options,
) -> None:
    """Talk with a model, several turns, streaming.

    MODEL may also be given with --model. /help lists commands. Ctrl-C stops an answer, Ctrl-D leaves. Lines of a piped
    standard input are turns.
    """
    no_more(take_model(list(words or []), options))
    talk = Conversation(system=system, sampling={**options.sampling, "n": 1})
    SamplingParams(**talk.sampling)
    with Session(options.engine_config()) as session:
        if not session.llm.chat_template:
            raise ChatTemplateError(
                "this model has no chat template; give one with --chat-template FILE, or use `mini-vllm generate`"
            )
        if on_terminal(sys.stdin):
            note(f"{session.llm.config.model.model}: /help lists commands, Ctrl-D leaves")
        for line in _lines():
            _turn(session, talk, line, show_footer=show_footer)
            if talk.ended:
                break


def _turn(session: Session, talk: Conversation, line: str, *, show_footer: bool) -> None:
    question: str | None = line
    if line.startswith("/"):
        shown, question = run_command(line, talk)
        if shown:
            write(shown + "\n")
    if question is None or not question.strip():
        return
    talk.ask(question)
    pieces: list[str] = []
    try:
        params = session.params(talk.sampling, **DEFAULTS)
        ids = session.llm.render_chat(talk.messages)
        found = session.ask(ids, params, show=lambda delta: _show(delta, pieces))
    except UserError as error:
        talk.take_back()
        note(f"error: {error}")
        return
    except KeyboardInterrupt:
        if not on_terminal(sys.stdin):
            raise
        talk.reply("".join(pieces))  # what was said before the interruption stays said
        write("\n")
        note("(stopped)")
        return
    write("\n")
    talk.reply(found.texts[0])
    if show_footer:
        note(session.footer(found))


def _show(delta: TextDelta, pieces: list[str]) -> None:
    if delta.text:
        pieces.append(delta.text)
        write(delta.text)


def _lines() -> Iterator[str]:
    """What the user types, line by line, with line editing and history on a terminal."""
    if not on_terminal(sys.stdin):
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    with _line_history():
        while True:
            try:
                yield input("> ")
            except EOFError:
                write("\n")
                return


@contextlib.contextmanager
def _line_history() -> Iterator[None]:
    try:
        import readline
    except ImportError:  # not everywhere
        yield
        return
    path = Path(cache_folder()) / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(1000)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
