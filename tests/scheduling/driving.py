"""A scheduler, its cache and a fake executor as one thing to drive, with every invariant checked at every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling import CostModel, Scheduler, Trace
from mini_vllm.testing.fake_executor import FakeExecutor
from mini_vllm.types import Request, SamplingParams, StepPlan, StepStats, TokenDelta, TokenLogprobs


def make_request(name: str, prompt: Sequence[int], max_tokens: int = 8, **options: Any) -> Request:
    """Options that SamplingParams has go there; the rest to Request."""
    known = SamplingParams.__dataclass_fields__
    params = {key: options.pop(key) for key in list(options) if key in known and key != "stop_token_ids"}
    open_ended = options.pop("open_ended", False)
    return Request(
        request_id=name,
        parent_id=name,
        prompt_token_ids=tuple(prompt),
        max_tokens=max_tokens,
        params=SamplingParams(max_tokens=None if open_ended else max_tokens, **params),
        **options,
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Token ids that differ from those of other seeds at every position."""
    return [(seed * 31 + i * 7 + i // 13) % 89 + seed * 100 for i in range(length)]


@dataclass
class Answer:
    """What the deltas of one request add up to."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None

    def take(self, delta: TokenDelta) -> None:
        assert self.finish_reason is None, "a delta after the end"
        assert not (self.prompt_logprobs and delta.prompt_logprobs), "prompt logprobs delivered twice"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason
        self.stop_token_id = delta.stop_token_id
        self.num_cached_tokens = delta.num_cached_tokens
        self.error = delta.error


class Rig:
    """`step()` plans, runs, commits and checks; `answers` collects what came out."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        max_model_len: int = 1024,
        costs: CostModel | None = None,
        **options: Any,
    ) -> None:
        executor = {key: options.pop(key) for key in ("num_drafts", "vocab_size", "check_kv") if key in options}
        cache = {key: options.pop(key) for key in CacheConfig.__dataclass_fields__ if key in options}
        self.cache = KVCache.from_config(CacheConfig(block_size=block_size, **cache), num_blocks=num_blocks)
        self.executor = FakeExecutor(num_blocks=num_blocks, block_size=block_size, **executor)
        self.time = 0.0
        self.trace = Trace()
        self.steps: list[tuple[StepPlan, StepStats]] = []
        self.scheduler = Scheduler(
            SchedulerConfig(**options),
            self.cache,
            max_model_len=max_model_len,
            clock=lambda: self.time,
            costs=costs,
            trace=self.trace,
            on_step=lambda plan, stats: self.steps.append((plan, stats)),
        )
        self.answers: dict[str, Answer] = {}
        self.requests: dict[str, Request] = {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 8, **options: Any) -> Request:
        request = make_request(name, prompt, max_tokens, **options)
        self.scheduler.add(request)
        self.answers[name] = Answer()
        self.requests[name] = request
        return request

    def step(self) -> StepPlan:
        self.time += 1.0
        plan = self.scheduler.plan()
        self.scheduler.check_integrity()
        for delta in self.scheduler.commit(plan, self.executor.run(plan)):
            self.answers[delta.request_id].take(delta)
        self.scheduler.check_integrity()
        return plan

    def run(self, max_steps: int = 10_000) -> dict[str, Answer]:
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                self.check_idle()
                return self.answers
            self.step()
        raise AssertionError(f"still working after {max_steps} steps")

    def check_idle(self) -> None:
        """Nothing is held and everybody has an answer."""
        assert self.cache.num_used == 0
        assert not self.executor.rows, "the executor still knows sequences"
        assert all(answer.finish_reason is not None for answer in self.answers.values())

    def check_outputs(self) -> None:
        """Every answer that was not aborted equals that of the request run alone."""
        for name, answer in self.answers.items():
            alone = self.alone(name)
            if answer.finish_reason == "abort":
                assert answer.token_ids == alone[: len(answer.token_ids)]
            else:
                assert answer.token_ids == alone, name

    def alone(self, name: str) -> list[int]:
        return self.executor.continuation(self.requests[name], max_seq_len=self.scheduler.max_seq_len)

    def chunk_lens(self, plan: StepPlan) -> dict[int, int]:
        return {chunk.seq_id: len(chunk.token_ids) for chunk in plan.chunks}
