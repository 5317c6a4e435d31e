"""What the server needs of an engine, and nothing more. `AsyncLLM` satisfies it, and so may a router or a stand-in.

Must not know HTTP.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from mini_vllm.engine.choice import Vocabulary
from mini_vllm.text.tools import ToolFormat
from mini_vllm.types import ANYONE, Embedding, EngineStats, Pooling, SamplingParams, Standing, TextDelta, TokenDelta


class DeltaStream(Protocol):
    """The text deltas of one request."""

    def __aiter__(self) -> "DeltaStream":
        """Itself."""

    async def __anext__(self) -> TextDelta:
        """The next delta. What refuses the request is raised by the first call."""

    async def aclose(self) -> None:
        """End the work behind it."""


class TextEngine(Protocol):
    """An engine that takes prompts and gives text. Before it starts, only `start`, `observe` and `abort` are there."""

    @property
    def tokenizer(self) -> Vocabulary:
        """The model's tokenizer."""

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""

    @property
    def thinks(self) -> bool:
        """Whether the model may write its thoughts between <think> tags first."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""

    def marker(self) -> Hashable | None:
        """Changes with any progress; None while nothing is being computed."""

    def give_up(self, reason: str) -> bool:
        """Fail what runs: it was found to hang. Whether it will work again by itself."""

    async def start(self) -> None:
        """Load the model and begin to work; once, further calls do nothing."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop working. May block for a step, `timeout` seconds at most."""

    def default_sampling_params(self) -> SamplingParams:
        """What holds for fields that a request leaves out."""

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        standing: Standing = ANYONE,
    ) -> DeltaStream:
        """All choices of a prompt, interleaved."""

    async def embed(
        self,
        prompt: Sequence[int],
        *,
        pooling: Pooling,
        dimensions: int | None,
        normalize: bool,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Embedding:
        """A prompt as one vector. Cancelling it ends the work."""

    def read_trace(self) -> str:
        """What the scheduler did in its last steps, as JSON lines. May block for a moment."""

    def observe(self, observer: Callable[[Sequence[TokenDelta]], object]) -> None:
        """Call this with the token deltas of every step from now on, on whichever thread makes them."""

    def abort(self, request_id: str) -> None:
        """End a request within a step; its stream ends with finish_reason "abort". Unknown ids are ignored."""

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Prompt token ids of a conversation; `ChatTemplateError` when the template refuses it."""

    def render_chat_text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The same as text."""

    def describe(self) -> Mapping[str, Any]:
        """What is loaded and what computes; keys that do not apply are absent."""

    def stats(self) -> EngineStats:
        """State and counters; cheap."""
