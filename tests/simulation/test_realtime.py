"""The replay on a real engine, with a clock that only its executor and its sleeps move: equal to the virtual one."""

import pytest
from msgspec import structs

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, join
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.scheduling import CostModel, LinearCosts
from mini_vllm.simulation import generators, sweep
from mini_vllm.simulation.arrivals import Arrival
from mini_vllm.simulation.cluster import Setup, simulate
from mini_vllm.simulation.fitted import fit
from mini_vllm.simulation.realtime import Replay, fold
from mini_vllm.simulation.virtual import SimulatedExecutor, VirtualClock
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import StepPlan, StepResult

COSTS = LinearCosts(step=5e-3, token=1e-4, sample=2e-4, context=1e-8, attended=1e-9)
TOKENIZER = ByteTokenizer()


class TimedExecutor(SimulatedExecutor):
    """Computing takes the clock's time; answers are letters."""

    def __init__(self, costs: CostModel, clock: VirtualClock) -> None:
        super().__init__(costs)
        self.clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        from dataclasses import replace

        result = super().run(plan)
        self.clock.now += result.seconds
        return replace(
            result, outputs=tuple(structs.replace(output, token_ids=(ord("x"),)) for output in result.outputs)
        )


def made(**options: object) -> tuple[Engine, VirtualClock]:
    clock = VirtualClock()
    clock.now = 1000.0
    limits = ModelLimits(max_model_len=2600, vocab_size=TOKENIZER.vocab_size, eos_token_ids=())
    config = EngineConfig.from_options(**options)
    executor = TimedExecutor(COSTS, clock)
    frontend = Frontend(TOKENIZER, limits, clock=clock)
    return join(config, executor, num_blocks=400, frontend=frontend, clock=clock), clock


def replay(engine: Engine, clock: VirtualClock) -> Replay:
    def sleep(seconds: float) -> None:
        clock.now += max(seconds, 1e-9)

    return Replay(engine, sleep=sleep)


@pytest.mark.parametrize("policy", ["fcfs", "srf", "static"])
def test_a_real_replay_and_a_virtual_one_agree(policy: str) -> None:
    arrivals = generators.generate("poisson:rate=30,requests=60,prompt=100,output=20,spread=0.6,seed=3")
    options = {"scheduling_policy": policy, "itl_target_ms": 0.0, "max_num_seqs": 8, "enable_prefix_caching": False}
    engine, clock = made(**options)
    real = replay(engine, clock).run(arrivals)
    setup = Setup(config=engine.config, costs=COSTS, num_blocks=400, max_model_len=2600)
    virtual, _ = simulate(setup, arrivals)
    for one, other in zip(real.requests, virtual.requests, strict=True):
        assert (one.name, one.num_prompt, one.num_output) == (other.name, other.num_prompt, other.num_output)
        assert one.first_token == pytest.approx(other.first_token, abs=1e-6)
        assert one.finished == pytest.approx(other.finished, abs=1e-6)
    assert real.steps[0].num_steps == virtual.steps[0].num_steps


def test_texts_stops_conversations_and_refusals() -> None:
    engine, clock = made()
    arrivals = [
        Arrival(at=0.0, name="text", text="hello", max_tokens=5),
        Arrival(at=0.1, name="stopped", text="hello", max_tokens=50, sampling={"stop": ["xxx"]}),
        Arrival(at=0.2, name="too long", text="h" * 3000, max_tokens=5),
        Arrival(at=0.3, name="no template", messages=({"role": "user", "content": "x"},), max_tokens=5),
    ]
    run = replay(engine, clock).run(arrivals)
    text, stopped, too_long, talk = run.requests
    assert (text.text, text.finish_reason, text.arrival) == ("xxxxx", "length", pytest.approx(0.0))
    assert (stopped.text, stopped.finish_reason) == ("", "stop") and stopped.num_output < 6
    assert too_long.finish_reason == "error" and "maximum context length" in (too_long.error or "")
    assert "no chat template" in (talk.error or "")


def test_folded_ids_stay_equal_and_fit_the_vocabulary() -> None:
    ids = fold(((1 << 40, 500), (1 << 40, 500)), 49_152)
    assert ids[:500] == ids[500:] and len(set(ids)) > 450
    assert all(1000 <= token_id < 49_152 for token_id in ids)
    assert all(128 <= token_id < 256 for token_id in fold(((7, 100),), 256))


def test_a_sweep_recovers_what_steps_cost() -> None:
    engine, clock = made(enable_prefix_caching=False)
    steps = sweep.measure(engine, replay=lambda engine: replay(engine, clock))
    model = fit(steps)
    assert model.about["relative_error"]["median"] < 0.01 and len(steps) > 300
    for step in steps[::7]:
        assert model.seconds(step.load) == pytest.approx(COSTS.seconds(step.load), rel=0.06)
