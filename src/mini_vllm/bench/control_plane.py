"""What the scheduler itself costs: plan() and commit() without any executor, at growing numbers of sequences, and a
large simulation, which is made of them.

Must not know models.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

from mini_vllm.bench.figures import Figure
from mini_vllm.config import CacheConfig, EngineConfig, SchedulerConfig
from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling import MeasuredCosts, Scheduler, Trace
from mini_vllm.simulation import cluster, generators, roofline
from mini_vllm.simulation.records import Slo, summarise
from mini_vllm.types import Request, SamplingParams, SequenceOutput, StepResult

SIZES = (32, 256, 1024, 2048)
GOALS_MS = {256: 1.0, 2048: 8.0}
GOAL_LINEAR = 1.25  # times as much for each of 2,048 as for each of 256: linear, but for what caches do
TRAFFIC = "poisson:rate=160,requests=100000,prompt=500,output=100,spread=0.5"
COST_MODEL, REPLICAS, GOAL_CLUSTER = "H100:8B", 16, 180.0
_STEPS, _PROMPT = 60, 64


def figures(sizes: Sequence[int] = SIZES) -> list[Figure]:
    """Of a decode step of so many sequences, with costs learned and steps traced: the median, and whether it grows in
    proportion."""
    medians = {}
    for size in sizes:
        times = sorted(decode_steps(size))
        medians[size] = (statistics.median(times), times[0])
    found = [
        Figure(
            what="plan() + commit()",
            load=f"{size} sequences",
            value=median,
            unit="ms",
            goal=GOALS_MS.get(size),
            note=f"median of {_STEPS} steps; best {best:.3f}, {1e3 * median / size:.2f} µs for each",
        )
        for size, (median, best) in medians.items()
    ]
    most, less = max(GOALS_MS), min(GOALS_MS)
    if {most, less} <= set(medians):
        ratio = medians[most][0] / most / (medians[less][0] / less)
        load = f"each of {most} against each of {less}"
        found.append(Figure(what="plan() + commit()", load=load, value=ratio, unit="times", goal=GOAL_LINEAR))
    return found


def decode_steps(size: int) -> Iterator[float]:
    """Milliseconds of each of some steps in which `size` sequences decode."""
    config = SchedulerConfig(max_num_seqs=size, max_num_batched_tokens=max(2048, 2 * size), max_waiting=size)
    cache = KVCache.from_config(CacheConfig(), num_blocks=20 * size)
    scheduler = Scheduler(config, cache, max_model_len=2048, costs=MeasuredCosts(), trace=Trace())
    for index in range(size):
        scheduler.add(
            Request(
                request_id=f"r{index}",
                parent_id=f"r{index}",
                prompt_token_ids=tuple(range(index * 1000, index * 1000 + _PROMPT)),
                params=SamplingParams(max_tokens=1000),
                max_tokens=1000,
            )
        )
    num_timed = 0
    while num_timed < _STEPS:
        begun = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter() - begun
        outputs = tuple([SequenceOutput(chunk.seq_id, (7,)) for chunk in plan.chunks if chunk.samples])
        begun = time.perf_counter()
        scheduler.commit(plan, StepResult(plan.step_id, outputs))
        if plan.num_tokens == len(plan.chunks) == size:
            num_timed += 1
            yield 1e3 * (planned + time.perf_counter() - begun)


def cluster_figure() -> Figure:
    """How long a large simulation takes on one core, every step of it planned and committed."""
    setup = cluster.Setup(
        config=EngineConfig.from_options(max_waiting=10**9),
        costs=roofline.parse(COST_MODEL),
        num_blocks=roofline.parse(COST_MODEL).num_kv_tokens // CacheConfig().block_size,
        max_model_len=8192,
        num_replicas=REPLICAS,
    )
    arrivals = generators.generate(TRAFFIC)
    begun = time.process_time()
    run, _ = cluster.simulate(setup, arrivals)
    seconds = time.process_time() - begun
    done = summarise(run, Slo())
    return Figure(
        what="simulation",
        load=f"{done['finished']} requests, {REPLICAS} replicas",
        value=seconds,
        unit="s",
        goal=GOAL_CLUSTER,
        note=f"{done['steps']} steps, {done['prompt_tokens']} tokens read, {done['output_tokens']} written: {TRAFFIC}",
    )
