"""One engine for the length of a command, driven from ordinary code.

Loads the model (with a progress bar where it must be fetched), streams a request, measures it. Must not know Typer.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from mini_vllm.cli.render import progress
from mini_vllm.config import EngineConfig
from mini_vllm.errors import EngineDeadError
from mini_vllm.types import RequestMetrics, SamplingParams, TextDelta

if TYPE_CHECKING:
    from mini_vllm import AsyncLLM


@dataclass(slots=True)
class Answer:
    """What one request gave, and how long it took, in seconds."""

    texts: list[str]
    token_ids: list[list[int]]
    finish_reasons: list[str | None]
    stop_reasons: list[str | int | None]
    logprobs: list[list[Any]]
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    time_to_first_token: float | None = None
    seconds: float = 0.0
    prompt_logprobs: list[Any] = field(default_factory=list)
    metrics: dict[int, RequestMetrics] = field(default_factory=dict)  # by choice, once it has ended

    @property
    def num_tokens(self) -> int:
        """Generated tokens of all choices."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_second(self) -> float:
        """After the first token; of everything if there is no more than that."""
        first = self.time_to_first_token or 0.0
        if self.num_tokens > len(self.texts) and self.seconds > first:
            return (self.num_tokens - 1) / (self.seconds - first)
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


class Session:
    """`with Session(config) as session: session.ask(…)`.

    Ctrl-C while a request runs aborts it and raises `KeyboardInterrupt`; the session can go on.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def __enter__(self) -> Self:
        from mini_vllm import AsyncLLM

        fetch(self._config)
        self._runner = asyncio.Runner()
        self._runner.__enter__()
        try:
            self.llm: AsyncLLM = AsyncLLM.from_config(self._config)
            self._runner.run(self.llm.start())
        except BaseException:
            self._runner.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.llm.shutdown()
        self._runner.__exit__(*exc_info)

    def params(self, given: dict[str, Any], **defaults: Any) -> SamplingParams:
        """What was given, over the model's own defaults, over `defaults`."""
        return SamplingParams(**{**defaults, **self.llm.engine.sampling_defaults, **given})

    def ask(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        show: Callable[[TextDelta], object] = lambda delta: None,
    ) -> Answer:
        """Run one request; `show` sees every delta as it comes."""
        return self._runner.run(answer(self.llm, prompt, params, show=show))

    def run(self, coroutine: Any) -> Any:
        """Run something else on the session's loop."""
        return self._runner.run(coroutine)

    @property
    def cache_mode(self) -> str:
        """How K and V are kept, for people."""
        return cache_mode(self._config)

    def footer(self, found: Answer) -> str:
        """The figures of one request, in one line."""
        return footer(found, self._config)


async def answer(
    llm: "AsyncLLM",
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    show: Callable[[TextDelta], object] = lambda delta: None,
) -> Answer:
    """Stream one request to its end."""
    found = Answer(
        texts=[""] * params.n,
        token_ids=[[] for _ in range(params.n)],
        finish_reasons=[None] * params.n,
        stop_reasons=[None] * params.n,
        logprobs=[[] for _ in range(params.n)],
    )
    start = time.perf_counter()
    async for delta in llm.stream(prompt, params):
        if delta.error is not None:
            raise EngineDeadError(delta.error)
        if delta.token_ids and found.time_to_first_token is None:
            found.time_to_first_token = time.perf_counter() - start
        _collect(found, delta)
        show(delta)
    found.seconds = time.perf_counter() - start
    return found


def _collect(found: Answer, delta: TextDelta) -> None:
    index = delta.choice_index
    found.texts[index] += delta.text
    found.token_ids[index] += delta.token_ids
    found.logprobs[index] += delta.logprobs
    found.prompt_logprobs += delta.prompt_logprobs
    found.num_prompt_tokens = max(found.num_prompt_tokens, delta.num_prompt_tokens)
    found.num_cached_tokens = max(found.num_cached_tokens, delta.num_cached_tokens)
    if delta.metrics is not None:
        found.metrics[index] = delta.metrics
    if delta.finish_reason is not None:
        found.finish_reasons[index] = delta.finish_reason
        found.stop_reasons[index] = delta.stop_reason


def fetch(config: EngineConfig) -> str:
    """Have the model on this machine, showing how far that is; its path."""
    from mini_vllm import weights

    model = config.model
    with progress(f"fetching {model.model}", unit="bytes") as bar:
        return str(weights.pull(model.model, revision=model.revision, progress=bar.update))


def cache_mode(config: EngineConfig) -> str:
    """How K and V are kept, for people."""
    if not config.cache.kv_cache:
        return "off"
    if config.cache.cache_backend == "contiguous":
        return "contiguous"
    return "paged, prefix caching" if config.cache.enable_prefix_caching else "paged"


def footer(found: Answer, config: EngineConfig) -> str:
    """The figures of one request, in one line; about guesses if there were any."""
    first = "-" if found.time_to_first_token is None else f"{found.time_to_first_token:.3f} s"
    reasons = ", ".join(dict.fromkeys(str(reason) for reason in found.finish_reasons))
    stops = [repr(reason) for reason in found.stop_reasons if reason is not None]
    cached = f" ({found.num_cached_tokens} cached)" if found.num_cached_tokens else ""
    return (
        f"prompt tokens: {found.num_prompt_tokens}{cached} | tokens: {found.num_tokens} | TTFT: {first} | "
        f"tok/s: {found.tokens_per_second:.1f} | finish reason: {reasons}{f' ({stops[0]})' if stops else ''} | "
        f"cache: {cache_mode(config)}{_guesses(found, config)}"
    )


def _guesses(found: Answer, config: EngineConfig) -> str:
    if config.speculative.speculative == "off":
        return ""
    drafts = sum(part.num_drafts for part in found.metrics.values())
    accepted = sum(part.num_drafts_accepted for part in found.metrics.values())
    forwards = sum(part.num_forwards for part in found.metrics.values())
    share = f" ({accepted / drafts:.0%})" if drafts else ""
    who = f"draft: {config.speculative.speculative}, gamma {config.speculative.gamma}"
    return f" | {who} | accepted: {accepted} of {drafts}{share} | target forwards: {forwards}"
