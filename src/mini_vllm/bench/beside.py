"""What a long prompt does to those who write, and they to it: the time between tokens of some streams while another
request's prompt is read, and the rate of that prompt against its rate alone.

Through the asyncio door and in its clients' time, on the real model. Must not know how prefill is paced.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mini_vllm.bench.figures import Figure
from mini_vllm.config import EngineConfig
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.simulation.records import percentile
from mini_vllm.types import SamplingParams

STREAMS, HISTORY, PROMPT = 8, 64, 4096
ROUNDS = 5
GOAL_SHARE = 0.75  # of its rate alone, that a prompt keeps
LEAD = 0.4  # seconds of decoding before the prompt comes
_FIRST_ID = 1000  # special tokens of most vocabularies lie below


class Beside:
    """One engine, and prompts that it has never seen."""

    def __init__(self, llm: AsyncLLM, *, seed: int = 1) -> None:
        self._llm = llm
        self._dice = random.Random(seed)

    async def round(self, *, streams: int = STREAMS, prompt: int = PROMPT) -> tuple[list[float], float]:
        """The gaps between tokens during a prefill, ascending, in seconds; and the prefill's share of its rate alone.

        A gap counts if any of it lies between the arrival of the prompt and its first token.
        """
        alone = await self._read(prompt)
        times: list[list[float]] = [[] for _ in range(streams)]
        writers = [asyncio.create_task(self._write(told)) for told in times]
        try:
            while not all(times):
                await asyncio.sleep(0.01)
                _raise_failures(writers)
            await asyncio.sleep(LEAD)
            begun = time.perf_counter()
            beside = await self._read(prompt)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
        end = begun + beside
        pairs = [pair for told in times for pair in pairwise(told)]
        return sorted(late - early for early, late in pairs if early < end and late > begun), alone / beside

    async def _read(self, num_tokens: int) -> float:
        """Seconds to the first token of a new prompt."""
        begun = time.perf_counter()
        async for _ in self._llm.stream(self._prompt(num_tokens), _params(1)):
            pass
        return time.perf_counter() - begun

    async def _write(self, told: list[float]) -> None:
        """Note when each token comes, until cancelled."""
        async for delta in self._llm.stream(self._prompt(HISTORY), _params(None)):
            if delta.token_ids:
                told.append(time.perf_counter())

    def _prompt(self, num_tokens: int) -> list[int]:
        vocab = self._llm.engine.frontend.limits.vocab_size
        return [self._dice.randrange(min(_FIRST_ID, vocab // 2), vocab) for _ in range(num_tokens)]


def _raise_failures(writers: Sequence["asyncio.Task[None]"]) -> None:
    for writer in writers:
        if writer.done():
            writer.result()


def _params(max_tokens: int | None) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)


def figures(config: EngineConfig, *, rounds: int = ROUNDS) -> list[Figure]:
    """Load the model and measure: medians of the rounds' 99th percentiles and shares."""
    return asyncio.run(_figures(config, rounds))


async def _figures(config: EngineConfig, rounds: int) -> list[Figure]:
    async with AsyncLLM.from_config(config) as llm:
        beside = Beside(llm)
        await beside.round(prompt=PROMPT // 2)  # the cost model learns, and memory is touched for the first time
        found = [await beside.round() for _ in range(rounds)]
    return list(as_figures(found, target_ms=config.scheduler.itl_target_ms))


def as_figures(rounds: Sequence[tuple[Sequence[float], float]], *, target_ms: float) -> Iterator[Figure]:
    """The table's lines: of each round one percentile and one share."""
    load = f"{STREAMS} streams, {PROMPT} tokens"
    tails = sorted(1e3 * (percentile(gaps, 0.99) or 0.0) for gaps, _ in rounds)
    middles = [1e3 * (percentile(gaps, 0.5) or 0.0) for gaps, _ in rounds]
    shares = sorted(share for _, share in rounds)
    yield Figure(
        what="ITL p99 beside a prefill",
        load=load,
        value=statistics.median(tails),
        unit="ms",
        goal=target_ms or None,
        note=f"median of {len(tails)} rounds of {tails[0]:.1f} to {tails[-1]:.1f}",
    )
    yield Figure(what="ITL p50 beside a prefill", load=load, value=statistics.median(middles), unit="ms")
    yield Figure(
        what="prefill beside them",
        load=load,
        value=statistics.median(shares),
        unit="of alone",
        goal=GOAL_SHARE,
        at_least=True,
        note=f"median of {len(shares)} rounds of {shares[0]:.2f} to {shares[-1]:.2f}",
    )
