"""`mini-vllm batch`: many prompts at once, through one engine."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from mini_vllm.cli.arguments import WORDS_HELP, no_more, take_model
from mini_vllm.cli.batch_input import BatchItem, read_batch
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.render import Bar, note, on_terminal, panel, progress, write_json
from mini_vllm.cli.session import Answer, Session, answer
from mini_vllm.errors import ConfigError, InvalidParameterError, UserError
from mini_vllm.types import SamplingParams

DEFAULTS = {"max_tokens": 256, "temperature": 0.0}
FORMATS = ("auto", "panels", "jsonl")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item: an answer, or why there is none."""

    item: BatchItem
    answer: Answer | None = None
    error: str | None = None


@with_options(*ENGINE, sampling=True)
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [INPUT]", hidden=True, help=WORDS_HELP)] = None,
    source: Annotated[
        str | None, typer.Option("--input", "-i", envvar="MINI_VLLM_INPUT", help="file with prompts; -: standard input")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", envvar="MINI_VLLM_OUTPUT", help="write JSONL to this file")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            envvar="MINI_VLLM_FORMAT",
            metavar="|".join(FORMATS),
            help="auto: panels on a terminal, JSONL otherwise",
        ),
    ] = "auto",
    concurrency: Annotated[
        int, typer.Option("--concurrency", envvar="MINI_VLLM_CONCURRENCY", help="requests in the engine at a time")
    ] = 256,
    *,
    options: Options,
) -> int:
    """Run many prompts at once, from a JSON, JSONL or text file.

    INPUT is a JSON list, one JSON entry a line, or one prompt a line; an entry is a text or an object with prompt or
    messages and sampling parameters of its own. Results come in the order of the prompts. Exit code 2 if any failed.
    """
    place = _source(list(words or []), options, source)
    if form not in FORMATS:
        raise ConfigError(f"format is {form!r}; choose one of {', '.join(FORMATS)}", param="format")
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; it must be at least 1", param="concurrency")
    items = read_batch(place, _read(place))
    SamplingParams(**options.sampling)
    in_panels = form == "panels" or (form == "auto" and target is None and on_terminal())
    with Session(options.engine_config()) as session, _Writer(target, panels=in_panels) as writer:
        start = time.perf_counter()
        with progress("generating") as bar:
            run = _Run(session, options, report=_reporter(bar, len(items), writer))
            outcomes: list[Outcome] = session.run(run.all(items, concurrency))
        seconds = time.perf_counter() - start
        if in_panels:
            writer.panels(outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    tokens = sum(outcome.answer.num_tokens for outcome in outcomes if outcome.answer)
    note(
        f"prompts: {len(items)} | failed: {failed} | tokens: {tokens} | {seconds:.2f} s | "
        f"tok/s: {tokens / seconds if seconds else 0:.1f} | cache: {session.cache_mode}"
    )
    return 2 if failed else 0


def _source(words: list[str], options: Options, source: str | None) -> str:
    """The input file: `--input`, else the last word; a word before it is the model."""
    if source is None and words:
        source = words.pop()
    no_more(take_model(words, options))
    if source is None:
        if on_terminal(sys.stdin):
            raise InvalidParameterError("there is no input; name a file with prompts, or - for standard input")
        source = "-"
    return source


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidParameterError(f"input {source} cannot be read: {reason}", param="input") from None


class _Run:
    """All items through one engine, so many at a time."""

    def __init__(self, session: Session, options: Options, *, report: Callable[[list[Outcome | None]], None]) -> None:
        self._session = session
        self._options = options
        self._report = report

    async def all(self, items: list[BatchItem], concurrency: int) -> list[Outcome]:
        """Outcomes in the order of the items; `report` sees the list as it fills."""
        slots = asyncio.Semaphore(concurrency)
        outcomes: list[Outcome | None] = [None] * len(items)

        async def run(index: int, item: BatchItem) -> None:
            async with slots:
                outcomes[index] = await self._one(item)
            self._report(outcomes)

        async with asyncio.TaskGroup() as group:
            for index, item in enumerate(items):
                group.create_task(run(index, item))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _one(self, item: BatchItem) -> Outcome:
        llm = self._session.llm
        try:
            params = self._session.params({**self._options.sampling, **item.sampling}, **DEFAULTS)
            prompt: Any = llm.render_chat(item.messages) if item.messages is not None else item.prompt
            return Outcome(item, await answer(llm, prompt, params))
        except UserError as error:
            return Outcome(item, error=str(error))


def _reporter(bar: Bar, total: int, writer: "_Writer") -> Callable[[list[Outcome | None]], None]:
    def report(outcomes: list[Outcome | None]) -> None:
        writer.lines(outcomes)
        bar.update(sum(outcome is not None for outcome in outcomes), total)

    return report


class _Writer:
    """JSONL in the order of the prompts, each line as soon as those before it are there; or panels at the end."""

    def __init__(self, target: Path | None, *, panels: bool) -> None:
        self._target = target
        self._to_stdout = target is None and not panels
        self._file: IO[str] | None = None
        self._next = 0

    def __enter__(self) -> "_Writer":
        if self._target is not None:
            try:
                self._file = self._target.open("w", encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"output {self._target} cannot be written: {error.strerror}", param="output"
                ) from None
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._file is not None:
            self._file.close()

    def lines(self, outcomes: list[Outcome | None]) -> None:
        """Write what can be written."""
        while self._next < len(outcomes) and (outcome := outcomes[self._next]) is not None:
            record = as_record(self._next, outcome)
            self._next += 1
            if self._file is not None:
                self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
                self._file.flush()
            elif self._to_stdout:
                write_json(record)

    def panels(self, outcomes: list[Outcome]) -> None:
        """Write everything for people."""
        for index, outcome in enumerate(outcomes):
            title = f"{index}: {outcome.item.title}"
            if outcome.answer is None:
                panel(f"error: {outcome.error}", title=title, subtitle="failed")
                continue
            found = outcome.answer
            reasons = ", ".join(map(str, found.finish_reasons))
            figures = f"{found.num_prompt_tokens} + {found.num_tokens} tokens, {found.seconds:.2f} s, {reasons}"
            panel("\n---\n".join(found.texts), title=title, subtitle=figures)


def as_record(index: int, outcome: Outcome) -> dict[str, Any]:
    """One line of the output."""
    item, found = outcome.item, outcome.answer
    record: dict[str, Any] = {"index": index, "id": item.id}
    record |= {"messages": item.messages} if item.messages is not None else {"prompt": item.prompt}
    if found is None:
        return record | {"error": outcome.error}
    record |= {"text": found.texts[0], "finish_reason": found.finish_reasons[0]}
    if len(found.texts) > 1:
        record["texts"] = found.texts
        record["finish_reasons"] = found.finish_reasons
    return record | {
        "num_prompt_tokens": found.num_prompt_tokens,
        "num_cached_tokens": found.num_cached_tokens,
        "num_tokens": found.num_tokens,
        "time_to_first_token": found.time_to_first_token and round(found.time_to_first_token, 6),
        "seconds": round(found.seconds, 6),
    }
