"""`mini-vllm bench show`: every kind of record there is, and what is none."""

import json
from pathlib import Path

import pytest

from mini_vllm.cli.benching import shown
from mini_vllm.errors import ConfigError
from mini_vllm.simulation.fitted import FittedCosts

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_record_can_be_shown(path: Path) -> None:
    assert "cpu" in (text := shown(path)) or "machine" in text
    assert len(text.splitlines()) > 5


def test_a_cost_model_can_be_shown(tmp_path: Path) -> None:
    costs = FittedCosts(
        knots=(1, 8),
        levels=(0.002, 0.0035),
        sample=1e-4,
        context=1e-8,
        attended=1e-9,
        about={"model": "m", "cpu": "c", "steps": 7, "relative_error": {"median": 0.05, "p90": 0.1}},
    )
    costs.save(tmp_path / "c.json")
    lines = shown(tmp_path / "c.json").splitlines()
    assert lines[:2] == ["cost model of m on c", "7 steps, error median 5.0%, p90 10.0%"]
    assert lines[5].split() == ["8", "3.500", "ms"]
    assert lines[-3:] == [
        "and for each sampled row: 100.0 µs",
        "and for each 1,000 tokens of context: 10.0 µs",
        "and for each million pairs of a query and a key: 1.0 ms",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ([], "is no record of `mini-vllm bench`: it has none of ratios, figures, checks, knots"),
        ({"figures": [{"a": 1}], "machine": {}}, "is a damaged record"),
        ({"checks": []}, "is a damaged record"),
        ({"knots": [1]}, "is no cost model"),
    ],
)
def test_what_is_no_record_is_said(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        shown(path)
