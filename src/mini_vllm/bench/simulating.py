"""Cost models from this machine, and whether simulations with them tell the truth.

The truth check replays one traffic in real time on the model, and once more under a virtual clock with the cost model
that a sweep just gave. Must not know other engines.
"""

import datetime
import statistics
from collections.abc import Iterator, Mapping, Sequence
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
_FRESH = "every traffic finds an empty prefix cache, as a virtual run does"
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


def truth_check(config: EngineConfig, *, rounds: int = 1) -> dict[str, Any]:
    """Real against virtual, for every traffic, several times with a new sweep each; the record."""
    engine = load_engine(config)
    try:
        found = [_round(engine) for _ in range(rounds)]
    finally:
        engine.close()
    checks = [
        {"traffic": spec, "rows": list(_medians([checks[spec]["rows"] for _, checks in found]))}
        for spec in (TRAFFIC, SHARED)
    ]
    return {
        "kind": "simulation",
        "machine": describe(),
        "cost_model": dict(found[-1][0].about),
        "checks": checks,
        "rounds": [list(checks.values()) for _, checks in found],
    }


def _round(engine: Engine) -> tuple[fitted.FittedCosts, dict[str, dict[str, Any]]]:
    engine.core.reset(_FRESH)
    costs = fit_costs(engine)
    return costs, {spec: _check(engine, costs, spec) for spec in (TRAFFIC, SHARED)}


def _check(engine: Engine, costs: fitted.FittedCosts, spec: str) -> dict[str, Any]:
    vocab = engine.frontend.limits.vocab_size
    engine.core.reset(_FRESH)
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
    return {"traffic": spec, "foreign": foreign, "rows": list(_rows(real, summarise(run, Slo())))}


def _medians(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Row by row: medians of what was measured and predicted, and of the errors, which decide."""
    for rows in zip(*rounds, strict=True):
        known = [row["error"] for row in rows if row["error"] is not None]
        error, goal = (statistics.median(known) if known else None), rows[0]["goal"]
        yield {
            **rows[0],
            **{name: statistics.median(row[name] for row in rows) for name in ("real", "virtual")},
            "error": error,
            "errors": [row["error"] for row in rows],
            "reached": None if goal is None or error is None else abs(error) <= goal,
        }


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
    rounds = record.get("rounds", [record["checks"]])
    lines.append(f"medians of {len(rounds)} rounds, each with a sweep of its own")
    for number, check in enumerate(record["checks"]):
        shares = [entry[number]["foreign"] for entry in rounds]
        foreign = ", ".join("unknown" if share is None else f"{share:.0%}" for share in shares)
        lines += ["", f"{check['traffic']} (used by others: {foreign})"]
        lines.append(f"{'figure':<18}{'real':>12}{'virtual':>12}{'error':>9}  {'goal':<17}of the rounds")
        lines += [_line(row) for row in check["rows"]]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Mapping[str, Any]) -> str:
    goal = "" if row["goal"] is None else f"within {row['goal']:.0%}: {'yes' if row['reached'] else 'NO'}"
    each = " ".join("-" if error is None else f"{error:+.1%}" for error in row.get("errors", [row["error"]]))
    error = "-" if row["error"] is None else f"{row['error']:+.1%}"
    figures = f"{row['figure']:<18}{_number(row['real']):>12}{_number(row['virtual']):>12}{error:>9}"
    return f"{figures}  {goal:<17}{each}".rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
