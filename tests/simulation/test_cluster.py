"""The virtual cluster: the same decisions as a scheduler driven by hand, whatever the replicas go through."""

import pytest

from mini_vllm.config import EngineConfig
from mini_vllm.errors import InvalidParameterError
from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling import LinearCosts, Scheduler, Trace
from mini_vllm.simulation import failures, generators
from mini_vllm.simulation.arrivals import Arrival, token_ids
from mini_vllm.simulation.cluster import Setup, simulate
from mini_vllm.simulation.records import Run, Slo, summarise
from mini_vllm.simulation.virtual import SimulatedExecutor, VirtualClock
from mini_vllm.types import Request, SamplingParams

COSTS = LinearCosts(step=5e-3, token=1e-4, sample=1e-5, context=1e-8)
SMALL = "poisson:rate=20,requests=80,prompt=120,output=30,spread=0.7,keys=3,seed=5"


def setup(num_replicas: int = 1, *, num_blocks: int = 80, **options: object) -> Setup:
    cluster = {name: options.pop(name) for name in ("router", "failures", "traced", "costs") if name in options}
    config = EngineConfig.from_options(max_waiting=10**6, **{"max_num_seqs": 16, **options})
    base = {"costs": COSTS, "num_blocks": num_blocks, "max_model_len": 1024, "num_replicas": num_replicas}
    return Setup(config=config, **{**base, **cluster})


def by_hand(arrivals: list[Arrival], made: Setup) -> dict[str, list[float]]:
    """When each token of each request came, from a loop that is obviously right."""
    clock = VirtualClock()
    cache = KVCache.from_config(made.config.cache, num_blocks=made.num_blocks)
    scheduler = Scheduler(
        made.config.scheduler, cache, max_model_len=made.max_model_len, clock=clock, costs=made.costs, trace=Trace()
    )
    executor, waiting, times = SimulatedExecutor(made.costs), list(arrivals), dict[str, list[float]]()
    while waiting or scheduler.has_work():
        if not scheduler.has_work():
            clock.now = max(clock.now, waiting[0].at)
        while waiting and waiting[0].at <= clock.now:
            arrival = waiting.pop(0)
            times[arrival.name] = []
            scheduler.add(
                Request(
                    request_id=arrival.name,
                    parent_id=arrival.name,
                    prompt_token_ids=token_ids(arrival.segments),
                    params=SamplingParams(max_tokens=None),
                    max_tokens=arrival.max_tokens,
                    noise_key=arrival.answer_base,
                    priority=arrival.priority,
                    key=arrival.key,
                    arrival=arrival.at,
                )
            )
        plan = scheduler.plan()
        result = executor.run(plan)
        clock.now += result.seconds
        for delta in scheduler.commit(plan, result):
            times[delta.request_id] += [delta.time] * len(delta.token_ids)
    return times


def outcome(run: Run) -> list[tuple[object, ...]]:
    return [(r.name, r.first_token, r.last_token, r.num_output, r.num_preemptions) for r in run.requests]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "srf", "static", "deadline"])
def test_one_replica_decides_as_a_scheduler_driven_by_hand(policy: str) -> None:
    arrivals = generators.generate(SMALL)
    made = setup(scheduling_policy=policy, num_blocks=40)
    run, _ = simulate(made, arrivals)
    times = by_hand(arrivals, made)
    for record in run.requests:
        assert record.num_output == record.max_tokens == len(times[record.name])
        assert record.first_token == pytest.approx(times[record.name][0])
        assert record.last_token == pytest.approx(times[record.name][-1])
    assert policy == "static" or run.steps[0].preemptions > 0


def test_the_same_traffic_gives_the_same_run() -> None:
    arrivals = generators.generate(SMALL)
    made = setup(3, router="least_loaded")
    assert outcome(simulate(made, arrivals)[0]) == outcome(simulate(made, arrivals)[0])


def test_figures_of_a_run_worked_out_by_hand() -> None:
    """Two requests of 100 and 3 tokens: prefill 10 + 20 ms, then each decode step 10 ms and a token's ms each."""
    costs = LinearCosts(step=10e-3, token=1e-3)
    arrivals = [
        Arrival(at=at, name=n, segments=((i << 20, 10),), max_tokens=3)
        for i, (at, n) in enumerate([(0.0, "a"), (0.0, "b"), (1.0, "c")], 1)
    ]
    run, trace = simulate(setup(costs=costs, traced=True), arrivals)
    a, b, c = run.requests
    assert (a.ttft, b.ttft, c.ttft) == pytest.approx((0.030, 0.030, 0.020))
    assert (a.tpot, c.tpot) == pytest.approx((0.012, 0.011))
    assert a.finished == pytest.approx(0.054) and c.finished == pytest.approx(1.042)
    figures = summarise(run, Slo(ttft=0.025, itl=0.05))
    assert figures["makespan"] == pytest.approx(1.042) and figures["output_tokens"] == 9
    assert figures["slo_attainment"] == pytest.approx(1 / 3) and figures["goodput"] == pytest.approx(1 / 1.042)
    assert figures["steps"] == 6 and figures["average_batch"] == pytest.approx(9 / 6)
    assert figures["itl"]["p50"] == pytest.approx(0.012)
    assert trace is not None and trace.steps()[0].stats.seconds == pytest.approx(0.030)


def test_conversations_find_their_own_answers_in_the_prefix_cache() -> None:
    run, _ = simulate(
        setup(num_blocks=2000), generators.generate("multi_turn:requests=40,rate=2,prompt=32,output=32,shared=64")
    )
    later = [record for record in run.requests if record.num_prompt > 200]
    assert later and all(record.num_cached >= record.num_prompt - 32 - 16 for record in later)


def test_prefix_aware_routing_finds_more_than_round_robin() -> None:
    arrivals = generators.generate("shared_prefix:requests=200,rate=40,prefixes=8,shared=320,prompt=40,output=10")
    hits = {}
    for router in ("round_robin", "least_loaded", "prefix_aware"):
        run, _ = simulate(setup(4, num_blocks=300, router=router), arrivals)
        assert all(record.finish_reason == "length" for record in run.requests)
        hits[router] = run.prefix_hit_tokens / run.prefix_query_tokens
    assert hits["prefix_aware"] > hits["round_robin"] + 0.05


def test_a_dead_replicas_requests_are_sent_again_and_nothing_is_told_twice() -> None:
    arrivals = generators.generate(SMALL)
    broken, _ = simulate(setup(3, failures=failures.parse(["1@1+2"], num_replicas=3)), arrivals)
    assert all(record.finish_reason == "length" for record in broken.requests)
    assert [record.num_output for record in broken.requests] == [record.max_tokens for record in broken.requests]
    moved = [record for record in broken.requests if record.num_retries]
    assert moved and all(record.replica != 1 for record in moved)
    assert not any(record.replica == 1 and 1.0 < record.arrival < 3.0 for record in broken.requests)
    assert any(record.replica == 1 and record.arrival > 3.0 for record in broken.requests), "it is used again"
    whole, _ = simulate(setup(3), arrivals)
    assert max(record.longest_gap for record in moved) > max(record.longest_gap for record in whole.requests)


def test_requests_wait_for_the_first_replica_to_come_back() -> None:
    arrivals = [Arrival(at=1.0, name="a", segments=((1 << 20, 10),), max_tokens=3)]
    run, _ = simulate(setup(failures=failures.parse(["0@0.5+5"], num_replicas=1)), arrivals)
    assert run.requests[0].ttft is not None and 4.5 <= run.requests[0].ttft <= 5.6


def test_a_slow_replica_is_slow_for_a_while() -> None:
    arrivals = generators.generate("poisson:rate=5,requests=60,prompt=50,output=20")
    slow, _ = simulate(setup(failures=failures.parse(["0@3+3x4"], num_replicas=1)), arrivals)
    during = [r.tpot for r in slow.requests if 3.2 < r.arrival < 5.0]
    after = [r.tpot for r in slow.requests if r.arrival > 8.0]
    assert min(during) > 3 * max(after)  # type: ignore[type-var]


@pytest.mark.parametrize("spec", ["1", "x@1+2", "1@2", "7@1+2"])
def test_bad_failures_are_refused(spec: str) -> None:
    with pytest.raises(InvalidParameterError, match="failure"):
        failures.parse([spec], num_replicas=3)


def test_overlapping_failures_add_up() -> None:
    arrivals = [Arrival(at=0.0, name="a", segments=((5, 20),), max_tokens=4)]
    both = setup(failures=failures.parse(["0@0+1", "0@0+3", "0@2+5x4"], num_replicas=1))
    run, _ = simulate(both, arrivals)
    alone, _ = simulate(setup(), arrivals)
    (request,), (quick,) = run.requests, alone.requests
    assert request.ttft >= 3.0, "the second failure outlasts the first"
    assert request.latency - request.ttft == pytest.approx(4 * (quick.latency - quick.ttft))


def test_years_without_a_replica_cost_no_time() -> None:
    arrivals = [Arrival(at=0.25, name=f"r{i}", segments=((1000 * i, 20),), max_tokens=4) for i in range(50)]
    run, _ = simulate(setup(failures=failures.parse(["0@0+100000000"], num_replicas=1)), arrivals)
    assert all(100_000_000 <= request.ttft < 100_000_002 for request in run.requests)


def test_a_slowdown_to_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="the factor must be more than 0"):
        failures.parse(["0@1+5x0"], num_replicas=1)


def test_a_request_that_can_never_fit_fails_alone() -> None:
    big = Arrival(at=0.0, name="big", segments=((1 << 20, 2000),), max_tokens=3)
    small = Arrival(at=0.0, name="small", segments=((2 << 20, 20),), max_tokens=3)
    run, _ = simulate(setup(), [big, small])
    assert [record.finish_reason for record in run.requests] == ["error", "length"]
    assert "exceed the context" in (run.requests[0].error or "")


def test_a_thousand_replicas() -> None:
    arrivals = generators.generate("poisson:rate=4000,requests=2000,prompt=40,output=5")
    run, _ = simulate(setup(1000, num_blocks=20_000, router="least_loaded"), arrivals)
    assert len({record.replica for record in run.requests}) > 150
    assert sum(record.num_output for record in run.requests) == 10_000
