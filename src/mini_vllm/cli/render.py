"""What people see: results on standard output, everything else on standard error.

Colours, boxes and progress bars appear on a terminal only. A character that the terminal cannot show is escaped and
never stops a command. Must not know models or engines.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.errors import MiniVLLMError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class OutputClosed(Exception):
    """Whoever read our output has closed the pipe. Not an `OSError`, which Typer would end the process for."""


class OutputError(MiniVLLMError):
    """Standard output cannot be written, for example because the disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"cannot write the output: {cause.strerror or cause}")


def open_missing_streams() -> None:
    """Put the null device where a standard stream is closed, so that no file or socket takes its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - lives as long as the process


def make_lossless(*streams: TextIO) -> None:
    """Write what an encoding lacks as an escape (`\\u65e5`) instead of failing."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def read_as_utf8(stream: TextIO | None) -> None:
    """Piped text is UTF-8, whatever the locale says."""
    if stream is not None and hasattr(stream, "reconfigure") and not on_terminal(stream):
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def as_utf8(argument: str) -> str:
    """An argument that the locale could not decode (it has surrogates in it), decoded as UTF-8 if it is that."""
    try:
        return argument.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return argument


def write(text: str, *, stream: TextIO | None = None) -> None:
    """Write and flush; never fails for a character. A closed pipe raises `OutputClosed`, a full disk `OutputError`."""
    stream = sys.stdout if stream is None else stream
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputError(error) from None


def complain(text: str) -> None:
    """One line on standard error; a failure to write it is ignored: it must not hide what went wrong."""
    note(" ".join(text.split("\n")))


def note(text: str) -> None:
    """Remarks on standard error. A failing print never fails a request."""
    with suppress(OSError, ValueError, OutputClosed, OutputError):
        write(text + "\n", stream=sys.stderr)


def write_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON value on a line, escaped where the encoding needs it."""
    write(json.dumps(value, ensure_ascii=not _is_unicode(sys.stdout), indent=indent) + "\n")


def on_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person is reading."""
    stream = sys.stdout if stream is None else stream
    return bool(getattr(stream, "isatty", lambda: False)())


def table(rows: Mapping[str, str], *, title: str | None = None) -> None:
    """Names and values: a box on a terminal, aligned lines otherwise."""
    if not on_terminal():
        width = max(map(len, rows))
        write("".join(f"{name:<{width}}  {value}\n" for name, value in rows.items()))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, show_header=False, title_justify="left")
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, Text(value))
    Console().print(grid)


def panel(body: str, *, title: str, subtitle: str) -> None:
    """A text with its heading and figures: a box on a terminal, plain lines otherwise."""
    if not on_terminal():
        write(f"--- {title}\n{body}\n({subtitle})\n\n")
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console().print(Panel(Text(body), title=Text(title), subtitle=Text(subtitle), title_align="left"))


@contextmanager
def progress(description: str, *, unit: str = "items") -> Iterator["Bar"]:
    """A progress bar on standard error; when nobody is looking, one line for a download and nothing for the rest."""
    bar = Bar(description, unit=unit)
    try:
        yield bar
    finally:
        bar.close()


class Bar:
    """Appears at the first update; updates may come from another thread."""

    def __init__(self, description: str, *, unit: str) -> None:
        self._description = description
        self._in_bytes = unit == "bytes"
        self._announced = False
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: float, total: float | None) -> None:
        """Show how far things are."""
        if not on_terminal(sys.stderr):
            if self._in_bytes and not self._announced:
                self._announced = True
                note(self._description + (f" ({show_bytes(int(total))})" if total else ""))
            return
        if self._progress is None:
            self._progress = self._start()
            self._task = self._progress.add_task(self._description, total=total)
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _start(self) -> "Progress":
        from rich import progress as parts
        from rich.console import Console

        figures: list[Any] = (
            [parts.DownloadColumn(), parts.TransferSpeedColumn()] if self._in_bytes else [parts.MofNCompleteColumn()]
        )
        bar = parts.Progress(
            parts.TextColumn("{task.description}"),
            parts.BarColumn(),
            *figures,
            parts.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        return bar


def show_bytes(count: int) -> str:
    """`90.2 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")
