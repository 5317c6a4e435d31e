"""The requests of one offline call, from admission to their results, in the calling thread.

Must not know about asyncio or HTTP.
"""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from mini_vllm.engine.assembly import Engine
from mini_vllm.engine.choice import ChoiceText
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.frontend import PreparedRequest
from mini_vllm.engine.outputs import OutputCollector
from mini_vllm.errors import EngineBusyError, EngineStepError
from mini_vllm.types import Embedding, Request, RequestOutput, TokenDelta, join_deltas

MOST_HELD = 256  # deltas of one choice

R = TypeVar("R")


class Batch(Protocol[R]):
    """What runs to its end, or is aborted."""

    def run(self) -> None:
        """Step until everything has ended; `EngineStepError` if a step fails."""

    def results(self) -> list[R]:
        """In the order of the prompts."""

    def abort(self) -> None:
        """End what is running."""


def feed(core: EngineCore, waiting: deque[Request]) -> None:
    """Queue as many of the waiting requests as the engine takes."""
    while waiting:
        try:
            core.add(waiting[0])
        except EngineBusyError:
            if not core.has_work():
                raise
            return
        waiting.popleft()


@dataclass(slots=True)
class _Choice:
    collector: OutputCollector
    text: ChoiceText
    held: list[TokenDelta] = field(default_factory=list)  # not read yet


class GenerationBatch:
    """The requests of one call, from admission to their outputs.

    Text is made of many tokens at once, where none of it is looked for or shown meanwhile.
    """

    def __init__(self, engine: Engine, prepared: list[PreparedRequest], *, report: bool) -> None:
        self._core = engine.core
        self._waiting = deque(request for item in prepared for request in item.requests)
        self._collectors = [engine.collector(item) for item in prepared]
        self._choices: dict[str, _Choice] = {}
        for item, collector in zip(prepared, self._collectors):
            for request_id, text in engine.frontend.choices(item).items():
                self._choices[request_id] = _Choice(collector, text)
        self._progress = _Progress(len(self._choices)) if report else None

    def run(self) -> None:
        """Step until every choice has ended."""
        while self._waiting or self._core.has_work():
            feed(self._core, self._waiting)
            for delta in self._core.advance():
                self._take(delta)
        if self._progress is not None:
            self._progress.close()

    def results(self) -> list[RequestOutput]:
        """The outputs, in the order of the prompts."""
        return [collector.result() for collector in self._collectors]

    def abort(self) -> None:
        """End what is running."""
        for request_id in self._choices:
            self._core.abort(request_id)
        while self._core.has_work():
            self._core.advance()

    def _take(self, token_delta: TokenDelta) -> None:
        if token_delta.error is not None:
            raise EngineStepError(token_delta.error)
        choice = self._choices[token_delta.request_id]
        held = choice.held
        if (
            token_delta.finish_reason is None
            and len(held) < MOST_HELD
            and not choice.text.may_end
            and not self._progress
        ):
            held.append(token_delta)
            return
        if held:
            token_delta = join_deltas([*held, token_delta])
            held.clear()
        delta = choice.text.push(token_delta)
        if delta is None:
            return
        if choice.text.must_abort:
            self._core.abort(token_delta.request_id, reason="stop")
        choice.collector.add(delta)
        if self._progress is not None:
            self._progress.add(len(delta.token_ids), ended=choice.text.finished)


class _Progress:
    """One line on standard error, rewritten as choices end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = 0
        self._num_tokens = 0

    def add(self, num_tokens: int, *, ended: bool) -> None:
        self._num_tokens += num_tokens
        if ended:
            self._ended += 1
            sys.stderr.write(f"\r{self._ended}/{self._total} done, {self._num_tokens} tokens")
            sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


class EmbeddingBatch:
    """One vector per request."""

    def __init__(self, core: EngineCore, requests: Sequence[Request]) -> None:
        self._core = core
        self._requests = requests
        self._found: dict[str, Embedding] = {}

    def run(self) -> None:
        """Step until every prompt was read."""
        waiting = deque(self._requests)
        prompts = {request.request_id: request.prompt_token_ids for request in self._requests}
        while waiting or self._core.has_work():
            feed(self._core, waiting)
            for delta in self._core.advance():
                self._found[delta.request_id] = read_embedding(delta, prompts[delta.request_id])

    def results(self) -> list[Embedding]:
        """In the order of the prompts."""
        return [self._found[request.request_id] for request in self._requests]

    def abort(self) -> None:
        """End what is running."""
        for request in self._requests:
            self._core.abort(request.request_id)
        while self._core.has_work():
            self._core.advance()


def read_embedding(delta: TokenDelta, prompt_token_ids: Sequence[int]) -> Embedding:
    """What the only delta of a request with a pooling says; `EngineStepError` if it has no vector."""
    if not delta.embedding:
        raise EngineStepError(delta.error or "the request was aborted")
    return Embedding(
        prompt_token_ids=list(prompt_token_ids),
        vector=list(delta.embedding),
        num_cached_tokens=delta.num_cached_tokens,
    )
