"""Cost models from this machine, and whether simulations with them tell the truth.

The truth check replays one traffic in real time on the model, and once more under a virtual clock with the cost model
that a sweep just gave. Must not know other engines.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mini_vllm.bench.machine import LoadMeter, describe
from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, load_engine
from mini_vllm.simulation import cluster, fitted, generators, sweep
from mini_vllm.simulation.arrivals import Arrival, token_ids
from mini_vllm.simulation.realtime import Replay, fold
from mini_vllm.simulation.records import Slo, summarise

TRAFFIC = "poisson:rate=4,requests=80,prompt=180,output=48,spread=0.7,seed=11"
SHARED = "shared_prefix:rate=6,requests=100,prompt=60,output=32,spread=0.5,prefixes=3,shared=200,seed=12"
GOALS = {"makespan": 0.10, "ttft.p50": 0.15, "itl.p50": 0.15}  # allowed distance of virtual from real
ALSO = ("ttft.p90", "itl.p90", "latency.p50", "average_batch", "steps", "prefix_hit_tokens")  # told, without a goal


def fit_costs(engine: Engine) -> fitted.FittedCosts:
    """Sweep an engine and fit a cost model to its steps."""
    machine, meter = describe(), LoadMeter()
    meter.begin()
    steps = sweep.measure(engine)
    return fitted.fit(
        steps,
        num_blocks=engine.core.stats().blocks_total,
        block_size=engine.config.cache.block_size,
        max_model_len=engine.frontend.limits.max_model_len,
        model=engine.config.model.model.rpartition("/")[2],
        cpu=machine["cpu"],
        computed_by=dict(engine.description),
        date=datetime.date.today().isoformat(),
        foreign=meter.foreign(),
    )


def cost_model(config: EngineConfig) -> fitted.FittedCosts:
    """Load a model and fit its costs."""
    engine = load_engine(config)
    try:
        return fit_costs(engine)
    finally:
        engine.close()


def truth_check(config: EngineConfig) -> dict[str, Any]:
    """Real against virtual, for every traffic; the record."""
    engine = load_engine(config)
    try:
        costs = fit_costs(engine)
        checks = [_check(engine, costs, spec) for spec in (TRAFFIC, SHARED)]
    finally:
        engine.close()
    about = dict(costs.about)
    return {"kind": "simulation", "machine": describe(), "cost_model": about, "checks": checks}


def _check(engine: Engine, costs: fitted.FittedCosts, spec: str) -> dict[str, Any]:
    vocab = engine.frontend.limits.vocab_size
    arrivals = generators.generate(spec)
    meter = LoadMeter()
    meter.begin()
    real = summarise(Replay(engine).run(arrivals), Slo())
    foreign = meter.foreign()
    setup = cluster.Setup(
        config=engine.config,
        costs=costs,
        num_blocks=costs.num_blocks,
        max_model_len=costs.max_model_len,
    )
    run, _ = cluster.simulate(setup, [_folded(arrival, vocab) for arrival in arrivals])
    virtual = summarise(run, Slo())
    return {"traffic": spec, "foreign": foreign, "rows": list(_rows(real, virtual)), "real": real, "virtual": virtual}


def _folded(arrival: Arrival, vocab_size: int) -> Arrival:
    """With the token ids that the real replay had."""
    ids = fold(arrival.segments, vocab_size)
    assert len(ids) == len(token_ids(arrival.segments))
    return replace(arrival, segments=tuple([(token_id, 1) for token_id in ids]))


def _rows(real: Mapping[str, Any], virtual: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    from mini_vllm.simulation.compare import figure

    for path in (*GOALS, *ALSO):
        ours, theirs = figure(virtual, path), figure(real, path)
        error = None if not theirs or ours is None else ours / theirs - 1.0
        goal = GOALS.get(path)
        reached = None if goal is None or error is None else abs(error) <= goal
        yield {"figure": path, "real": theirs, "virtual": ours, "error": error, "goal": goal, "reached": reached}


def render(record: Mapping[str, Any]) -> str:
    """The record as text."""
    machine, fit = record["machine"], record["cost_model"]
    lines = [
        f"machine: {machine['cpu']}, {machine['cores']} cores",
        f"cost model: {fit['steps']} steps, relative error median {fit['relative_error']['median']:.1%}, "
        f"p90 {fit['relative_error']['p90']:.1%}",
    ]
    for check in record["checks"]:
        foreign = "unknown" if check["foreign"] is None else f"{check['foreign']:.0%}"
        lines += ["", f"{check['traffic']} (used by others: {foreign})"]
        lines.append(f"{'figure':<18}{'real':>12}{'virtual':>12}{'error':>9}  goal")
        for row in check["rows"]:
            goal = "" if row["goal"] is None else f"within {row['goal']:.0%}: {'yes' if row['reached'] else 'NO'}"
            error = "-" if row["error"] is None else f"{row['error']:+.1%}"
            lines.append(
                f"{row['figure']:<18}{_number(row['real']):>12}{_number(row['virtual']):>12}{error:>9}  {goal}"
            )
    return "\n".join(lines).rstrip() + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
