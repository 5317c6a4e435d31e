"""One user's request over an engine client: prepared, submitted, and read as text deltas.

Must not know about HTTP, nor how the engine runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import partial

from mini_vllm.engine.assembly import EngineFront
from mini_vllm.engine.choice import ChoiceText
from mini_vllm.engine.client import EngineClient, TokenStream
from mini_vllm.engine.frontend import PreparedRequest, Prompt
from mini_vllm.types import ANYONE, SamplingParams, Standing, TextDelta, TokenDelta

LONG_PROMPT = 20_000  # characters or ids; preparing more than this leaves the asyncio loop alone


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the user put it."""

    prompt: Prompt
    params: SamplingParams
    request_id: str
    priority: int
    cache_salt: str
    standing: Standing = ANYONE


class TextStream:
    """The text deltas of one request, all n choices interleaved; an asynchronous iterator.

    Nothing happens before the first `__anext__` or `accepted()`. `aclose()`, a cancelled `__anext__` and dropping the
    stream all abort what is still running.
    """

    def __init__(
        self, engine: EngineFront, client: EngineClient, asked: Asked, *, on_end: "Callable[[TextStream], object]"
    ) -> None:
        self._engine = engine
        self._client = client
        self._asked = asked
        self._on_end = on_end
        self._start_once = asyncio.Lock()
        self._prepared: PreparedRequest | None = None
        self._tokens: TokenStream | None = None
        self._choices: dict[str, ChoiceText] = {}
        self._num_open = asked.params.n
        self._is_aborted = False

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._asked.request_id

    @property
    def prepared(self) -> PreparedRequest:
        """The request as resolved; only after it was accepted or gave a delta."""
        assert self._prepared is not None, "the stream has not started"
        return self._prepared

    async def accepted(self) -> None:
        """Wait until the engine has queued the request; raises `UserError`, `EngineBusyError`, `EngineDeadError`."""
        tokens = await self._start()
        await tokens.accepted()

    def __aiter__(self) -> "TextStream":
        return self

    async def __anext__(self) -> TextDelta:
        if self._num_open == 0:
            await self.aclose()
            raise StopAsyncIteration
        try:
            tokens = await self._start()
            async for token_delta in tokens:
                delta = self._take(token_delta)
                if delta is not None:
                    return delta
        except BaseException:
            self._on_end(self)
            raise
        raise StopAsyncIteration

    def abort(self) -> None:
        """End it within a step: every choice that is open gives a last delta with finish_reason "abort"."""
        self._is_aborted = True
        for request_id, choice in self._choices.items():
            if not choice.finished:
                self._client.abort(request_id)

    async def aclose(self) -> None:
        """Abort what is still running and expect nothing more."""
        self._num_open = 0
        self._on_end(self)
        if self._tokens is not None:
            await self._tokens.aclose()

    def _take(self, token_delta: TokenDelta) -> TextDelta | None:
        choice = self._choices[token_delta.request_id]
        delta = choice.push(token_delta)
        if delta is None:  # what the engine made beyond a stop string
            return None
        if choice.must_abort:
            self._client.abort(token_delta.request_id, reason="stop")
        if choice.finished:
            self._num_open -= 1
            if self._num_open == 0:
                self._on_end(self)
        return delta

    async def _start(self) -> TokenStream:
        async with self._start_once:
            if self._tokens is None:
                self._prepared = await self._prepare()
                self._choices = self._engine.frontend.choices(self._prepared)
                self._tokens = self._client.submit(*self._prepared.requests)
                if self._is_aborted:
                    self.abort()
        return self._tokens

    async def _prepare(self) -> PreparedRequest:
        prepare = partial(
            self._engine.frontend.prepare,
            self._asked.prompt,
            self._asked.params,
            request_id=self._asked.request_id,
            priority=self._asked.priority,
            cache_salt=self._asked.cache_salt,
            standing=self._asked.standing,
        )
        if is_long(self._asked.prompt) or self._asked.params.structured_outputs is not None:
            return await asyncio.to_thread(prepare)
        return prepare()


def is_long(prompt: Prompt) -> bool:
    """Whether preparing a prompt is work."""
    parts = prompt.values() if isinstance(prompt, Mapping) else (prompt,)
    return any(isinstance(part, Sized) and len(part) > LONG_PROMPT for part in parts)
