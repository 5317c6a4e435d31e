"""Random mixes of requests, and two ways to run them: together in a random engine, or each alone in a plain one.

A mix is drawn from a seed: prompts that share beginnings of awkward lengths, sampling parameters of every kind, the
steps at which requests arrive and are aborted, and the engine's settings: chunk and batch sizes, a pool that may be
too small for all, the kind of cache. Which executor computes it (threads, block size) is drawn too.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm import AsyncLLM, SamplingParams, runner
from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, join
from mini_vllm.engine.frontend import Frontend, ModelLimits, PreparedRequest
from mini_vllm.runner.executor import LocalExecutor
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import EngineStats, Request, TokenLogprobs

STEM_LENGTHS = (1, 7, 15, 16, 17, 31, 32, 33, 48, 64, 100)
CHUNK_SIZES = (None, None, 1, 3, 7, 15, 16, 17, 64)
END_ID = 7  # ends a sequence unless it ignores the end


@dataclass(frozen=True, slots=True)
class Scale:
    """How large mixes are. All in tokens, but for `most_requests`."""

    vocab_size: int
    most_requests: int
    longest_tail: int  # of a prompt, after the part it shares with others
    rare_length: int  # of the odd long prompt
    most_output: int


@dataclass(slots=True)
class Outcome:
    """All that a request gives, and how it ended."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    ending: str | None = None

    def is_beginning_of(self, whole: "Outcome") -> bool:
        """What an aborted request must be."""
        return (
            self.token_ids == whole.token_ids[: len(self.token_ids)]
            and self.logprobs == whole.logprobs[: len(self.logprobs)]
            and self.prompt_logprobs in ([], whole.prompt_logprobs)
        )


@dataclass(frozen=True, slots=True)
class Mix:
    """What runs together, and when."""

    prompts: tuple[PreparedRequest, ...]
    arrivals: tuple[int, ...]  # the step before which each prompt is handed in
    aborts: dict[str, int]  # request id → the step before which it is aborted
    settings: dict[str, object]
    num_blocks: int

    @property
    def requests(self) -> list[Request]:
        return [request for prompt in self.prompts for request in prompt.requests]


def load(checkpoint, scale: Scale, *, draft=None, **options) -> LocalExecutor:
    """The native executor of a mix, roomy enough for any."""
    settings = {"executor": "native", "num_blocks": 320, "max_num_seqs": 8, "max_num_batched_tokens": 2048, **options}
    config = EngineConfig.from_options(model="mix", max_model_len=scale.rare_length + 256, **settings)
    # The last ids are padding.
    return runner.load_executor(config, checkpoint, vocab_size=scale.vocab_size - 3, draft=draft)


def make_frontend(executor: LocalExecutor) -> Frontend:
    limits = ModelLimits(
        max_model_len=executor.max_model_len, vocab_size=executor.info.vocab_size, eos_token_ids=(END_ID,)
    )
    return Frontend(ByteTokenizer(), limits, clock=lambda: 0.0)


def make_engine(executor: LocalExecutor, num_blocks: int, **settings) -> Engine:
    """A fresh scheduler and cache over an executor, whose KV memory keeps what others left in it."""
    executor.reset()
    config = EngineConfig.from_options(model="mix", block_size=executor.block_size, **settings)
    return join(config, executor, num_blocks=num_blocks, frontend=make_frontend(executor))


def draw_params(source: random.Random, scale: Scale) -> SamplingParams:
    """Greedy or drawn, with or without each transform and report."""

    def maybe(share: float, value: object, otherwise: object) -> object:
        return value if source.random() < share else otherwise

    if source.random() < 0.2:  # as plain as can be: alone, such steps read the head in part
        return SamplingParams(
            max_tokens=source.randint(1, scale.most_output), temperature=0.0, ignore_eos=source.random() < 0.7
        )
    return SamplingParams(
        n=maybe(0.2, source.randint(2, 3), 1),
        max_tokens=maybe(0.05, 0, source.randint(1, scale.most_output)),
        temperature=maybe(0.3, 0.0, source.choice([0.3, 0.8, 1.0, 1.7])),
        top_k=maybe(0.3, source.randint(1, 60), 0),
        top_p=maybe(0.4, source.choice([0.3, 0.9, 0.99]), 1.0),
        min_p=maybe(0.2, 0.05, 0.0),
        repetition_penalty=maybe(0.3, source.choice([0.8, 1.3]), 1.0),
        presence_penalty=maybe(0.2, 0.5, 0.0),
        frequency_penalty=maybe(0.2, 0.3, 0.0),
        logit_bias=maybe(0.2, {source.randrange(scale.vocab_size): 3.0, END_ID: -2.0}, {}),
        seed=source.randrange(2**32),
        ignore_eos=source.random() < 0.7,
        logprobs=maybe(0.7, source.randint(0, 5), None),
        prompt_logprobs=maybe(0.3, source.randint(0, 3), None),
    )


def draw_prompts(source: random.Random, scale: Scale, text: Sequence[int]) -> list[list[int]]:
    """Stretches of a text, most of which begin alike."""
    stem_start = source.randrange(len(text) - max(STEM_LENGTHS))
    prompts = []
    for _ in range(source.randint(2, scale.most_requests)):
        stem = text[stem_start : stem_start + source.choice((0, *STEM_LENGTHS))]
        length = scale.rare_length if source.random() < 0.03 else source.randint(1, scale.longest_tail)
        length = min(length, scale.rare_length - len(stem))
        start = source.randrange(len(text) - length)
        prompts.append([*stem, *text[start : start + length]])
    if source.random() < 0.3:
        prompts.append(list(source.choice(prompts)))
    return prompts


def draw_mix(source: random.Random, scale: Scale, text: Sequence[int], executor: LocalExecutor) -> Mix:
    """Everything about a mix but the executor."""
    frontend = make_frontend(executor)
    prompts = tuple(
        frontend.prepare(prompt, draw_params(source, scale), request_id=f"p{i}")
        for i, prompt in enumerate(draw_prompts(source, scale, text))
    )
    requests = [request for prompt in prompts for request in prompt.requests]
    lengths = [len(request.prompt_token_ids) + request.max_tokens for request in requests]
    max_num_seqs = source.choice([1, 2, 3, 5, 8, 8, 8])
    settings: dict[str, object] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": source.choice([max_num_seqs, 16, 33, 64, 512]),
        "prefill_chunk_size": source.choice(CHUNK_SIZES),
    }
    kind = source.choice(["paged", "paged", "paged", "private", "contiguous", "off"])
    if kind == "private":
        settings["enable_prefix_caching"] = False
    elif kind == "contiguous":
        settings["cache_backend"] = "contiguous"
    elif kind == "off":
        settings |= {"kv_cache": False, "max_num_batched_tokens": max(lengths) + source.randrange(64)}
    settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], max_num_seqs)
    needed = -(-max(lengths) // executor.block_size)
    roomy = source.random() < 0.2
    return Mix(
        prompts=prompts,
        arrivals=tuple(source.choice([0, 0, source.randrange(12)]) for _ in prompts),
        aborts={r.request_id: source.randrange(20) for r in requests if source.random() < 0.05},
        settings=settings,
        num_blocks=executor.num_blocks if roomy else needed + source.randrange(3),
    )


def run_together(executor: LocalExecutor, mix: Mix) -> tuple[dict[str, Outcome], EngineStats]:
    """By request id, step by step in this thread."""
    engine = make_engine(executor, mix.num_blocks, **mix.settings)
    core, outcomes = engine.core, {request.request_id: Outcome() for request in mix.requests}
    queue = sorted(zip(mix.arrivals, range(len(mix.prompts)), mix.prompts), reverse=True)
    step = 0
    while queue or core.has_work():
        while queue and queue[-1][0] <= step:
            for request in queue.pop()[2].requests:
                core.add(request)
        for request_id, when in mix.aborts.items():
            if when == step:
                core.abort(request_id)
        for delta in core.advance():
            assert delta.error is None, delta.error
            outcome = outcomes[delta.request_id]
            outcome.token_ids += delta.token_ids
            outcome.logprobs += delta.logprobs
            outcome.prompt_logprobs += delta.prompt_logprobs
            outcome.ending = delta.finish_reason
        step += 1
    core.scheduler.check_integrity()
    return outcomes, core.stats()


def run_alone(executor: LocalExecutor, request: Request) -> Outcome:
    """One request in an engine of its own, its prompt in one piece."""
    engine = make_engine(executor, executor.num_blocks, enable_prefix_caching=False)
    engine.core.add(request)
    outcome = Outcome()
    while engine.core.has_work():
        for delta in engine.core.advance():
            assert delta.error is None, delta.error
            outcome.token_ids += delta.token_ids
            outcome.logprobs += delta.logprobs
            outcome.prompt_logprobs += delta.prompt_logprobs
            outcome.ending = delta.finish_reason
    return outcome


def run_concurrently(executor: LocalExecutor, mix: Mix) -> dict[str, Outcome]:
    """By request id, over the asynchronous door: arrivals fall wherever the engine's thread happens to be."""
    engine = make_engine(executor, mix.num_blocks, **mix.settings)

    async def follow(llm: AsyncLLM, prompt: PreparedRequest, delay: int) -> dict[str, Outcome]:
        await asyncio.sleep(delay / 2000)
        outcomes = [Outcome() for _ in prompt.requests]
        stream = llm.stream(list(prompt.prompt_token_ids), prompt.params, request_id=prompt.request_id)
        async for delta in stream:
            assert delta.error is None, delta.error
            outcome = outcomes[delta.choice_index]
            outcome.token_ids += delta.token_ids
            outcome.logprobs += delta.logprobs
            outcome.prompt_logprobs += delta.prompt_logprobs
            outcome.ending = delta.finish_reason
        return {request.request_id: outcome for request, outcome in zip(prompt.requests, outcomes)}

    async def main() -> dict[str, Outcome]:
        llm = AsyncLLM.from_engine(engine)
        try:
            results = await asyncio.gather(*(follow(llm, *pair) for pair in zip(mix.prompts, mix.arrivals)))
        finally:
            await asyncio.to_thread(llm.shutdown)
        return {request_id: outcome for result in results for request_id, outcome in result.items()}

    return asyncio.run(main())
