"""The step, its failures, and the counters across them."""

import pytest
from engine.parts import ScriptedExecutor, counting, make_engine

from mini_vllm.errors import EngineDeadError
from mini_vllm.types import SamplingParams


def _requests(engine, *prompts, **params):
    params = SamplingParams(temperature=0.0, **params)
    return [request for prompt in prompts for request in engine.frontend.prepare(prompt, params).requests]


def _run(core):
    deltas = []
    while core.has_work():
        deltas += core.advance()
    return deltas


class FailingExecutor(ScriptedExecutor):
    """Raises in the runs whose number is in `failing`."""

    def __init__(self, *failing, reset_fails=False):
        super().__init__(counting)
        self.failing = failing
        self.reset_fails = reset_fails
        self.num_runs = 0

    def run(self, plan):
        self.num_runs += 1
        result = super().run(plan)
        if self.num_runs in self.failing:
            raise FloatingPointError("the matrix caught fire")
        return result

    def reset(self):
        if self.reset_fails:
            raise MemoryError("no memory left")
        super().reset()


def test_a_step_is_plan_run_commit():
    engine = make_engine()
    for request in _requests(engine, "ab", "c", max_tokens=3):
        engine.core.add(request)
    deltas = _run(engine.core)
    lengths = {}
    for delta in deltas:
        lengths[delta.request_id] = lengths.get(delta.request_id, 0) + len(delta.token_ids)
    assert sorted(lengths.values()) == [3, 3]
    assert [delta.finish_reason for delta in deltas].count("length") == 2


def test_a_failed_step_ends_the_requests_in_flight_and_the_next_request_works():
    executor = FailingExecutor(3)
    engine = make_engine(executor=executor)
    lost = _requests(engine, "ab", "c", max_tokens=30)
    for request in lost:
        engine.core.add(request)
    deltas = _run(engine.core)
    last = deltas[-2:]
    assert {delta.request_id for delta in last} == {request.request_id for request in lost}
    assert all(delta.finish_reason == "error" and "FloatingPointError: the matrix" in delta.error for delta in last)
    assert executor.num_resets == 1 and not executor.known
    assert engine.core.stats().blocks_used == 0
    [request] = _requests(engine, "next", max_tokens=5)
    engine.core.add(request)
    assert sum(len(delta.token_ids) for delta in _run(engine.core)) == 5


def test_counters_survive_a_failed_step_and_add_up():
    engine = make_engine(executor=FailingExecutor(4))
    for request in _requests(engine, "a", "b", "c", max_tokens=2):
        engine.core.add(request)
    _run(engine.core)
    for request in _requests(engine, "d", "e", max_tokens=9):
        engine.core.add(request)
    _run(engine.core)
    stats = engine.core.stats()
    assert (stats.accepted, stats.finished_length, stats.finished_error) == (5, 3, 2)
    assert stats.running == stats.waiting == 0


@pytest.mark.parametrize("part", ["plan", "commit"])
def test_a_failing_scheduler_is_survived_like_a_failing_executor(part, monkeypatch):
    engine = make_engine()

    def fail(*args):
        raise KeyError("a lost sequence")

    monkeypatch.setattr(engine.core.scheduler, part, fail)
    for request in _requests(engine, "a", max_tokens=2):
        engine.core.add(request)
    [delta] = engine.core.advance()
    assert delta.finish_reason == "error" and "KeyError" in delta.error
    for request in _requests(engine, "b", max_tokens=2):
        engine.core.add(request)
    assert _run(engine.core)[-1].finish_reason == "length"


def test_an_engine_that_cannot_start_afresh_is_dead_and_says_so():
    engine = make_engine(executor=FailingExecutor(1, reset_fails=True))
    [request] = _requests(engine, "a", max_tokens=2)
    engine.core.add(request)
    with pytest.raises(EngineDeadError, match="MemoryError: no memory left"):
        engine.core.advance()
    assert not engine.core.has_work()
    with pytest.raises(EngineDeadError, match="restart"):
        engine.core.add(request)


def test_can_04_abort_frees_blocks_within_one_step():
    engine = make_engine(enable_prefix_caching=False)
    requests = _requests(engine, *["a long enough prompt for two blocks"] * 20, max_tokens=400, ignore_eos=True)
    for request in requests:
        engine.core.add(request)
    for _ in range(4):
        engine.core.advance()
    assert engine.core.stats().blocks_used >= 60
    for request in requests:
        engine.core.abort(request.request_id)
    deltas = engine.core.advance()
    assert [delta.finish_reason for delta in deltas] == ["abort"] * 20
    assert engine.core.stats().blocks_used == 0
    _run(engine.core)
    assert not engine.core.executor.known
    engine.core.scheduler.check_integrity()


def test_can_03_an_aborted_waiting_request_never_runs():
    engine = make_engine(max_num_seqs=1)
    first, second, third = _requests(engine, "A", "B", "C", max_tokens=3)
    for request in (first, second, third):
        engine.core.add(request)
    engine.core.advance()
    engine.core.abort(second.request_id)
    _run(engine.core)
    admitted = [admission.prompt_token_ids for plan in engine.core.executor.plans for admission in plan.admitted]
    assert admitted == [first.prompt_token_ids, third.prompt_token_ids]
