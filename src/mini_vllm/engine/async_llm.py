"""The asyncio door: prompts in, text deltas out, many at once over one engine on its own thread.

Must not know about HTTP.
"""

import asyncio
import contextlib
import itertools
import os
import weakref
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mini_vllm.config import ENGINE_FORMS, EngineConfig
from mini_vllm.engine.assembly import Engine, EngineFront, Recipe
from mini_vllm.engine.choice import Vocabulary
from mini_vllm.engine.client import LocalClient, Observer, ThreadClient
from mini_vllm.engine.embedding import check_dimensions, embed, fit_vector
from mini_vllm.engine.frontend import ChatRenderer, Prompt, check_params
from mini_vllm.engine.outputs import OutputCollector
from mini_vllm.engine.stream import Asked, TextStream, is_long
from mini_vllm.errors import ConfigError, EngineDeadError, EngineStepError, InvalidParameterError
from mini_vllm.text.tools import ToolFormat, choose_format
from mini_vllm.types import ANYONE, Embedding, EngineStats, Pooling, RequestOutput, SamplingParams, Standing

if TYPE_CHECKING:
    from mini_vllm.models import ModelInfo


class AsyncLLM:
    """A model that serves many requests at once. `async with AsyncLLM("smollm2-135m") as llm: …`.

    Options are those of `LLM`. `engine_form` says where it computes: on a "thread" of this process, or in a "process"
    of its own, which is started again when it dies. All methods belong to asyncio loops; only `abort`, `stats`,
    `is_alive` and `shutdown` may be called from elsewhere.
    """

    def __init__(
        self, model: str | os.PathLike[str] = "smollm2-135m", *, engine_form: str = "thread", **options: Any
    ) -> None:
        self._prepare(EngineConfig.from_options(model=model, **options), engine_form)

    @classmethod
    def from_config(
        cls, config: EngineConfig, *, engine_form: str = "thread", recipe: Recipe | None = None
    ) -> "AsyncLLM":
        """What a config names; `start` loads it, by the recipe where one is given."""
        llm = cls.__new__(cls)
        llm._prepare(config, engine_form, recipe)
        return llm

    @classmethod
    def from_engine(cls, engine: Engine) -> "AsyncLLM":
        """Over an engine that is already in memory; started."""
        llm = cls.from_config(engine.config)
        llm._open(engine)
        return llm

    def _prepare(self, config: EngineConfig, engine_form: str = "thread", recipe: Recipe | None = None) -> None:
        if engine_form not in ENGINE_FORMS:
            raise ConfigError(
                f"engine_form is {engine_form!r}; choose one of {', '.join(ENGINE_FORMS)}", param="engine_form"
            )
        self.config = config
        self.engine_form = engine_form
        self._recipe = recipe or Recipe()
        self._engine: EngineFront | None = None
        self._client: LocalClient | None = None
        self._starting = asyncio.Lock()
        self._serial = itertools.count()
        self._observers: list[Observer] = []
        self._streams: weakref.WeakValueDictionary[str, TextStream] = weakref.WeakValueDictionary()  # by user's id

    def _open(self, engine: Engine) -> None:
        self._engine = engine
        self._client = ThreadClient(engine.core, observers=self._observers)

    async def start(self) -> None:
        """Load the model and start the engine; once. The asyncio loop stays free meanwhile."""
        async with self._starting:
            if self._engine is not None:
                return
            if self.engine_form == "process":
                from mini_vllm.engine.process import start_process

                self._engine, self._client = await asyncio.to_thread(
                    start_process, self.config, self._recipe, self._observers
                )
            else:
                self._open(await asyncio.to_thread(self._recipe.load, self.config))

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop after the step in flight; unfinished streams raise `EngineDeadError`. Idempotent.

        Waits `timeout` seconds at most for that step (None: as long as it takes; a process is killed in the end); a
        thread that hangs keeps the model.
        """
        if self._client is None or self._engine is None:
            return
        if self._client.shutdown(timeout):
            self._engine.close()

    async def __aenter__(self) -> "AsyncLLM":
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.shutdown)

    @property
    def engine(self) -> EngineFront:
        """The parts: configuration, tokenizer, limits, description."""
        if self._engine is None:
            raise EngineDeadError("the engine is not started; await start() first")
        return self._engine

    @property
    def client(self) -> LocalClient:
        """Tokens in, tokens out."""
        if self._client is None:
            raise EngineDeadError("the engine is not started; await start() first")
        return self._client

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""
        return self._client is not None and self._client.is_alive

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""
        return self.client.counts_operations

    def marker(self) -> Hashable | None:
        """Changes with any progress of the engine; None while nothing is being computed."""
        return None if self._client is None else self._client.marker()

    def give_up(self, reason: str) -> bool:
        """Declare a hung engine dead: unfinished streams raise `EngineDeadError`. Whether another takes its place."""
        return self.client.give_up(reason)

    @property
    def tokenizer(self) -> Vocabulary:
        """The model's tokenizer."""
        return self.engine.frontend.tokenizer

    @property
    def chat_template(self) -> ChatRenderer | None:
        """The model's chat template, if it has one."""
        return self.engine.frontend.chat_template

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""
        template = self.chat_template
        return choose_format("") if template is None else template.tool_format

    @property
    def thinks(self) -> bool:
        """Whether the model may write its thoughts between <think> tags before it answers."""
        return self.chat_template is not None and self.chat_template.thinks

    @property
    def model_info(self) -> "ModelInfo":
        """Architecture and sizes."""
        assert self.engine.info is not None, "this engine was joined without a model"
        return self.engine.info

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        return self.engine.frontend.limits.max_model_len

    def default_sampling_params(self) -> SamplingParams:
        """The model's generation config over our defaults."""
        return self.engine.default_sampling_params()

    def describe(self) -> dict[str, Any]:
        """What is loaded and what computes it; keys that do not apply are absent."""
        engine, cache = self.engine, self.config.cache
        kv_cache = {
            "backend": cache.cache_backend if cache.kv_cache else "off",
            "block_size": cache.block_size,
            "num_blocks": self.stats().blocks_total,
            "prefix_caching": cache.enable_prefix_caching and cache.kv_cache,
        }
        model = {} if engine.info is None else {"architecture": engine.info.architecture}
        return {"device": self.config.model.device, **engine.description, **model, "kv_cache": kv_cache}

    def stats(self) -> EngineStats:
        """State and counters as of the last step."""
        return self.client.snapshot()

    def read_trace(self) -> str:
        """What the scheduler did in its last steps, as JSON lines. Blocks for a moment."""
        return self.engine.read_trace()

    def observe(self, observer: Observer) -> None:
        """Call this with the token deltas of every step from now on, on the engine's thread; it must be quick."""
        self._observers.append(observer)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> list[int]:
        """A conversation as token ids; `ChatTemplateError` if there is no template or it refuses the messages."""
        return self.engine.frontend.render_chat(messages, **template_options)

    def render_chat_text(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> str:
        """The same as text."""
        return self.engine.frontend.render_chat_text(messages, **template_options)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        standing: Standing = ANYONE,
    ) -> TextStream:
        """Generate; iterate over the text deltas of all n choices, interleaved.

        Errors of the request (`UserError`, `EngineBusyError`) are raised by the first `__anext__`, or by
        `await stream.accepted()` before any token is made. A failed step gives a delta with finish_reason "error".
        Leaving early aborts. `standing` says who asks and by when it is needed, for scheduling policies that care.
        """
        if request_id is None:
            request_id = f"request-{next(self._serial)}"
        elif request_id in self._streams:
            raise InvalidParameterError(
                f"request_id {request_id!r} is in use by a running request; choose another", param="request_id"
            )
        params = self.default_sampling_params() if params is None else params
        check_params(params)
        asked = Asked(
            prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt, standing=standing
        )
        stream = TextStream(self.engine, self.client, asked, on_end=self._forget)
        self._streams[request_id] = stream
        return stream

    def _forget(self, stream: TextStream) -> None:
        if self._streams.get(stream.request_id) is stream:  # else the id is already another's
            del self._streams[stream.request_id]

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Generate; every output holds all that was made so far. `EngineStepError` if a step fails."""
        stream = self.stream(prompt, sampling_params, request_id=request_id, priority=priority, cache_salt=cache_salt)
        async with contextlib.aclosing(stream):
            collector: OutputCollector | None = None
            async for delta in stream:
                if delta.error is not None:
                    raise EngineStepError(delta.error)
                collector = collector or self.engine.collector(stream.prepared)
                collector.add(delta)
                yield collector.snapshot()

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
        normalize: bool = True,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Embedding:
        """A prompt as one vector [H]; see `LLM.embed`. Cancelling it aborts."""
        check_dimensions(dimensions, self.engine)
        prepare = partial(
            self.engine.frontend.embedding_request, prompt, pooling=pooling, priority=priority, cache_salt=cache_salt
        )
        request = await asyncio.to_thread(prepare) if is_long(prompt) else prepare()
        found = await embed(self.client, request)
        return replace(found, vector=fit_vector(found.vector, dimensions, normalize=normalize))

    def abort(self, request_id: str) -> None:
        """End a request of this id within a step; its choices end with finish_reason "abort". Unknown: ignored."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.abort()
