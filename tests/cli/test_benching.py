"""`mini-vllm bench`: every kind of record can be shown, and an option works or is refused."""

import json
from pathlib import Path

import pytest

from mini_vllm.cli.benching import BENCHES, Bench, Work, shown
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


ALL = ("peers", "neighbours", "server", "speculative", "show", "cost-model", "simulation", "scheduler")
MEASURING = tuple(bench for bench in ALL if bench != "show")
WHERE = {
    "--quick": tuple(bench for bench in MEASURING if bench != "cost-model"),
    "--full": tuple(bench for bench in MEASURING if bench != "cost-model"),
    "--smoke": ("peers",),
    "--json": MEASURING,
    "--only": ("peers", "server", "speculative"),
    "--threads": MEASURING,
    "--rounds": ("neighbours", "simulation"),
}
VALUES = {"--json": ["r.json"], "--only": ["q4_1"], "--threads": ["1"], "--rounds": ["2"]}


def test_every_bench_says_which_options_it_takes() -> None:
    found = {option: tuple(name for name, bench in BENCHES.items() if option in bench.takes) for option in WHERE}
    assert tuple(BENCHES) == ALL and found == WHERE


@pytest.mark.parametrize("option", WHERE)
def test_an_option_that_would_change_nothing_is_refused(run, option: str) -> None:
    for bench in set(ALL) - set(WHERE[option]):
        ran = run("bench", bench, option, *VALUES.get(option, []))
        takers = ", ".join(f"`bench {name}`" for name in WHERE[option])
        message = f"error: {option} changes nothing in `bench {bench}`; leave it out, or use it with {takers}\n"
        assert (ran.code, ran.out, ran.err) == (2, "", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("show", "`bench show` needs the record to show; write `bench show RECORD`"),
        (
            "neighbours m.gguf",
            "`bench neighbours` is given 'm.gguf', which it does not read; leave it out: a record goes with `bench "
            "show`, a model with `bench cost-model`, `bench simulation`, `bench scheduler`",
        ),
        (
            "peers --smoke --full",
            "--smoke has an extent of its own; leave out --quick and --full, or leave out --smoke",
        ),
        (
            "server --only cost,health --threads 1",
            "--threads is for the part model of `bench server`, not for cost, health; add model to --only, or leave "
            "out --threads",
        ),
        ("servers", "bench is given 'servers'; write one of `bench peers`, "),
        ("neighbours --threads 0", "threads is 0; it must be at least 1"),
    ],
)
def test_what_goes_together_is_said(run, words: str, message: str) -> None:
    ran = run("bench", *words.split())
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"error: {message}")


def test_variables_of_the_environment_are_for_the_benches_that_know_them(run, monkeypatch) -> None:
    for name, value in {"THREADS": "1", "ONLY": "single", "QUICK": "1", "ROUNDS": "2", "SMOKE": "1"}.items():
        monkeypatch.setenv(f"MINI_VLLM_{name}", value)
    ran = run("bench", "show", RESULTS / "2026-11-30-neighbours.json")
    assert ran.code == 0 and "32 streams beside 3 spinning processes" in ran.out


def test_rounds_count_also_in_a_quick_run() -> None:
    assert [Work(quick=quick).repeats(whole=10, quick=2) for quick in (False, True)] == [10, 2]
    assert [Work(quick=quick, rounds=5).repeats(whole=10, quick=2) for quick in (False, True)] == [5, 5]


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """The benches that began to measure; none of them does."""
    begun: list[str] = []
    for name, bench in BENCHES.items():
        monkeypatch.setitem(BENCHES, name, Bench(lambda work, name=name: begun.append(name) or True, bench.takes))
    return begun


@pytest.mark.parametrize("bench", MEASURING)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("notes.txt/r.json", "a part of the path is a file, not a folder"),
        ("notes.txt/new/r.json", "a part of the path is a file, not a folder"),
        ("folder", "Is a directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(
    run, measured, tmp_path: Path, bench: str, name: str, reason: str
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    ran = run("bench", bench, "--json", path)
    message = f"error: cannot write {path}: {reason}; give --json a file that can be written\n"
    assert (ran.code, ran.out, ran.err, measured) == (2, "", message, [])
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("bench", MEASURING)
def test_looking_whether_a_record_can_be_written_changes_no_file(run, measured, tmp_path: Path, bench: str) -> None:
    old, link = tmp_path / "old.json", tmp_path / "link.json"
    old.write_text("what was there")
    link.symlink_to(tmp_path / "linked" / "new.json")
    for path in (old, tmp_path / "new" / "r.json", link, Path("/dev/null")):
        assert run("bench", bench, "--json", path).code == 0
    assert measured == [bench] * 4
    assert old.read_text() == "what was there" and link.is_symlink()
    assert not list((tmp_path / "new").iterdir()) and not list((tmp_path / "linked").iterdir())


def test_a_cost_model_without_a_file_of_its_own_is_looked_for_too(run, measured, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    ran = run("bench", "cost-model")
    assert ran.code == 2 and measured == []
    assert ran.err.startswith(f"error: cannot write {tmp_path / 'cache' / 'cost-model.json'}: a part of the path is a")
    assert run("bench", "cost-model", "--json", tmp_path / "c.json").code == 0 and measured == ["cost-model"]


def test_a_file_for_others_does_not_matter_to_a_bench_that_writes_none(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINI_VLLM_BENCH_JSON", str(tmp_path))
    assert run("bench", "show", RESULTS / "2026-11-30-neighbours.json").code == 0


@pytest.mark.parametrize("content", ["", '{"ratios": [], "machine": {}}'])
def test_a_record_that_cannot_be_added_to_is_refused_before_drafters_are_measured(
    run, monkeypatch, tmp_path: Path, content: str
) -> None:
    from mini_vllm.bench import speculative

    monkeypatch.setattr(speculative, "measure", None)
    path = tmp_path / "r.json"
    path.write_text(content)
    ran = run("bench", "speculative", "--json", path)
    assert ran.code == 2 and ran.err.startswith(f"error: cannot add to {path}: ")
    assert ran.err.endswith("; give another file\n") and path.read_text() == content


def test_what_was_measured_is_shown_even_where_its_record_cannot_be_written(run, monkeypatch, tmp_path: Path) -> None:
    from mini_vllm.bench import surface

    path = tmp_path / "new" / "r.json"

    def measure(**_: object) -> dict[str, object]:
        path.parent.rmdir()
        path.parent.write_text("meanwhile a file")
        return {"machine": {"cpu": "c"}, "figures": [{"what": "w", "value": 41.0, "unit": "µs", "form": "thread"}]}

    monkeypatch.setattr(surface, "measure", measure)
    ran = run("bench", "server", "--json", path)
    assert ran.code == 2 and ran.err.startswith(f"error: cannot write {path}: ")
    assert ran.out.startswith("cpu: c\n") and "41.0 µs" in ran.out
