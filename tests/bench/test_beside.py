"""What a prompt does to those who write: gaps that overlap its prefill count, of each round one percentile."""

import asyncio
import time

import pytest
from simulation.test_realtime import made

from mini_vllm import AsyncLLM
from mini_vllm.bench import beside
from mini_vllm.errors import ContextLengthError
from mini_vllm.types import StepPlan, StepResult


def test_a_round_sees_everybody_s_gaps_and_the_prompt_s_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "LEAD", 0.0)
    engine, _ = made()
    compute = engine.core.executor.run

    def slowly(plan: StepPlan) -> StepResult:
        time.sleep(0.001)
        return compute(plan)

    monkeypatch.setattr(engine.core.executor, "run", slowly)

    async def run() -> tuple[list[float], float]:
        async with AsyncLLM.from_engine(engine) as llm:
            figures = await beside.Beside(llm).round(streams=3, prompt=600)
            async with asyncio.timeout(30):  # requests that nobody reads any more end at a next step
                while engine.core.stats().running:
                    await asyncio.sleep(0.001)
            return figures

    gaps, share = asyncio.run(run())
    assert len(gaps) >= 3 and gaps == sorted(gaps) and gaps[-1] >= 0.001
    assert share > 0.0
    assert engine.core.stats().finished_abort == 3, "those who wrote were ended"


def test_figures_are_medians_over_rounds() -> None:
    tail, middle, share = beside.as_figures(
        [([0.01] * 99 + [0.06], 0.7), ([0.01, 0.02, 0.04], 0.8), ([0.01, 0.03, 0.03], 0.9)], target_ms=50.0
    )
    assert (tail.value, tail.goal, tail.is_met) == (30.0, 50.0, True)
    assert tail.note == "median of 3 rounds of 10.0 to 40.0"
    assert middle.value == 20.0 and (share.value, share.is_met) == (0.8, True)
    assert next(iter(beside.as_figures([([0.06], 1.0)], target_ms=50.0))).is_met is False


def test_a_prompt_that_does_not_fit_is_said() -> None:
    engine, _ = made()

    async def run() -> None:
        async with AsyncLLM.from_engine(engine) as llm:
            await beside.Beside(llm).round(prompt=4096)

    with pytest.raises(ContextLengthError, match="maximum context length is 2600 tokens"):
        asyncio.run(run())
