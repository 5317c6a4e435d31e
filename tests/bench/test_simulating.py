"""The benches of the scheduling laboratory, on an engine whose clock only its executor moves."""

import json
from pathlib import Path

import pytest
from simulation.test_realtime import COSTS, made, replay

from mini_vllm.bench import control_plane, simulating
from mini_vllm.simulation import fitted
from mini_vllm.simulation.realtime import Replay


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> dict:
    """A truth check in which nothing is measured wrongly, so that only the simulation itself can err."""
    engine, clock = made()
    monkeypatch.setattr(simulating, "load_engine", lambda config: engine)
    monkeypatch.setattr(simulating, "Replay", lambda engine: replay(engine, clock))
    monkeypatch.setattr(simulating.sweep.measure, "__kwdefaults__", {"replay": lambda engine: replay(engine, clock)})
    monkeypatch.setattr(simulating, "TRAFFIC", "poisson:rate=6,requests=30,prompt=180,output=48,spread=0.7,seed=11")
    return simulating.truth_check(engine.config, rounds=2)


def test_a_truth_check_of_a_perfect_measurement_reaches_every_goal(record: dict) -> None:
    assert [row["figure"] for row in record["checks"][0]["rows"]][:3] == list(simulating.GOALS)
    for check in record["checks"]:
        for row in check["rows"]:
            if row["goal"] is not None:
                assert row["reached"] and abs(row["error"]) < 0.05, row
    text = simulating.render(record)
    assert text.count("yes") == 6 and "NO" not in text
    json.dumps(record)


def test_a_missed_goal_is_said() -> None:
    figures = {name: {"p50": 1.0, "p90": 1.0} for name in ("ttft", "itl", "latency")}
    rest = {"makespan": 10.0, "average_batch": 2.0, "steps": 5, "prefix_hit_tokens": 0}
    rows = list(simulating._rows({**figures, **rest}, {**figures, **rest, "makespan": 12.0}))
    assert rows[0]["error"] == pytest.approx(0.2) and rows[0]["reached"] is False
    assert rows[-1]["error"] is None, "nothing of nothing has no error"


def test_rounds_are_repeated_from_the_same_beginning_and_their_medians_count(record: dict) -> None:
    again = simulating._medians([rows_with_error(0.2), rows_with_error(-0.05), rows_with_error(0.08)])
    row = next(again)
    assert (row["error"], row["errors"], row["reached"]) == (0.08, [0.2, -0.05, 0.08], True)
    first, second = (round[1]["rows"][-1] for round in record["rounds"])
    assert first["figure"] == "prefix_hit_tokens" and first["real"] == second["real"] > 0, "the cache was empty again"
    assert "medians of 2 rounds" in simulating.render(record)


def rows_with_error(error: float) -> list[dict]:
    return [{"figure": "makespan", "real": 1.0, "virtual": 1.0 + error, "error": error, "goal": 0.1, "reached": None}]


def test_the_scheduler_s_figures_have_their_goals() -> None:
    found = control_plane.figures((4, 256, 2048))
    assert [(figure.load, figure.goal) for figure in found] == [
        ("4 sequences", None),
        ("256 sequences", 1.0),
        ("2048 sequences", 8.0),
        ("each of 2048 against each of 256", control_plane.GOAL_LINEAR),
    ]
    assert all(figure.value > 0 for figure in found)


def test_a_large_simulation_is_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "TRAFFIC", "poisson:rate=160,requests=40,prompt=50,output=5")
    found = control_plane.cluster_figure()
    assert found.load == "40 requests, 16 replicas" and "2000 tokens read, 200 written" in found.note
    assert found.value > 0 and found.goal == 180.0


def test_a_cost_model_file_is_what_simulate_reads(tmp_path: Path) -> None:
    engine, clock = made()
    model = fitted.fit(
        simulating.sweep.measure(engine, replay=lambda engine: replay(engine, clock)),
        num_blocks=engine.core.stats().blocks_total,
        max_model_len=engine.frontend.limits.max_model_len,
    )
    path = tmp_path / "costs.json"
    model.save(path)
    again = fitted.read(path)
    assert (again.num_blocks, again.max_model_len) == (400, 2600)
    assert COSTS is not None and isinstance(Replay, type)
