"""Finds the command, runs it, and turns what happened into an exit code.

Only the command that was asked for is imported, so that `mini-vllm --help` is quick. Must not know models.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from mini_vllm.cli.render import (
    OutputClosed,
    OutputError,
    as_utf8,
    complain,
    make_lossless,
    open_missing_streams,
    read_as_utf8,
    write,
)
from mini_vllm.errors import MiniVLLMError, MissingDependencyError, UserError

COMMANDS = {
    "chat": "Talk with a model, several turns, streaming.",
    "generate": "Complete one prompt.",
    "batch": "Run many prompts at once, from a JSON, JSONL or text file.",
    "embed": "Turn a text into a vector.",
    "serve": "Start the OpenAI-compatible HTTP server.",
    "inspect": "Show what a model is, what it needs and what fits, without loading it.",
    "tokenize": "Show a text's token ids and pieces, and whether it survives the round trip.",
    "pull": "Fetch a model and print where it lies.",
    "stats": "Show what a running server is doing.",
    "simulate": "Replay traffic, in real time or under a virtual clock, and show every step.",
    "explain": "Tell why a request took as long as it did.",
    "bench": "Measure this engine against others, in turn, and against what the machine allows.",
}
OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0, 1 (failed), 2 (bad input), 130 (Ctrl-C)."""
    open_missing_streams()
    given = [as_utf8(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    make_lossless(sys.stdout, sys.stderr)
    read_as_utf8(sys.stdin)
    try:
        code = _run(given or ["--help"])
        write("")  # whatever is still to be flushed
    except (OutputClosed, BrokenPipeError):  # whoever read our output has seen enough
        _silence_stdout()
        return OK
    except (OutputError, OSError) as error:  # OSError: Typer writes help pages itself
        _silence_stdout()
        complain(f"error: {error if isinstance(error, OutputError) else OutputError(error)}")
        return FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        complain("interrupted")
    return code


def _run(arguments: list[str]) -> int:
    try:
        result = typer.main.get_command(make_app(arguments)).main(
            arguments, prog_name="mini-vllm", standalone_mode=False
        )
    except UserError as error:
        complain(f"error: {error}")
        return BAD_INPUT
    except OutputError:
        raise
    except MiniVLLMError as error:
        complain(f"error: {error}")
        return BAD_INPUT if isinstance(error, MissingDependencyError) else FAILED
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Usage errors are click's, which some versions of Typer carry inside: known by what they can do.
        if not hasattr(error, "format_message"):
            raise
        place = getattr(getattr(error, "ctx", None), "command_path", "mini-vllm")
        complain(f"error: {' '.join(error.format_message().split())} (see `{place} --help`)")
        return BAD_INPUT
    return result if isinstance(result, int) else OK


class _Command(TyperCommand):
    """One argument holds all the words, so that its metavar is the whole usage: `[MODEL] [PROMPT]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As Typer has them, without its brackets around brackets."""
        pieces = [piece.removesuffix("...") for piece in super().collect_usage_pieces(ctx)]
        return [piece[1:-1] if piece.startswith("[[") else piece for piece in pieces]


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that `arguments` name, and stand-ins for the others."""
    app = typer.Typer(
        name="mini-vllm",
        help="A small, readable and fast LLM inference engine. Every flag is also an environment variable, "
        "MINI_VLLM_NAME (shown by COMMAND --help).",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_global_options)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        function = _load(name) if name == chosen else _stand_in
        app.command(name, cls=_Command, help=_help_of(function) or summary, short_help=summary)(function)
    return app


def _load(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = import_module(f"mini_vllm.cli.commands.{name}").command
    return function


def _help_of(function: Callable[..., Any]) -> str | None:
    return function.__doc__


def _stand_in() -> None:
    pass


_stand_in.__doc__ = None


def _show_version(value: bool) -> None:  # noqa: FBT001
    if value:
        from mini_vllm import __version__

        typer.echo(f"mini-vllm {__version__}")
        raise typer.Exit


def _global_options(
    version: bool = typer.Option(  # noqa: FBT001
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def _silence_stdout() -> None:
    """Keep the interpreter from complaining about the closed pipe when it exits."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
