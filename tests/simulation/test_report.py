"""What people see of a run, and what is written."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from scheduling.test_golden import preemption_of_the_youngest
from simulation.test_cluster import COSTS, setup

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.scheduling.export import from_jsonl
from mini_vllm.simulation import charts, compare, files, generators, report
from mini_vllm.simulation.cluster import Setup, simulate
from mini_vllm.simulation.records import RequestRecord, Slo, summarise

GOLDEN_TICKS = """\
 tick       at     took kind    batch tokens wait  blocks                           events
    0   0.0 ms   0.0 ms prefill     3     24    0  [##################..]    7/8    start A B C
    1   1.00 s   0.0 ms decode      3      3    0  [####################]    8/8
    2   2.00 s   0.0 ms decode      2      2    1  [###############+++++]    6/8    preempt C · wait: preemption
… 18 more ticks (they are in the ticks file) …
   21  21.00 s   0.0 ms decode      1      1    0  [#############+++++++]    5/8
   22  22.00 s   0.0 ms decode      1      1    0  [#############+++++++]    5/8    end C
   23  23.00 s   0.0 ms idle        0      0    0  [++++++++++++++++++++]    0/8
"""


def small(name: str = "poisson:rate=20,requests=20,prompt=60,output=10") -> tuple:
    return simulate(setup(traced=True), generators.generate(name))


def test_the_timeline_shows_waiting_reading_and_writing() -> None:
    record = RequestRecord("a", 0.0, 10, 5, started=0.25, first_token=0.5, last_token=1.0, finished=1.0, num_output=5)
    late = RequestRecord("b", 0.5, 7, 5, num_retries=1)
    header, first, second = report.timeline([record, late])
    assert header.split() == ["request", "timeline", "at", "TTFT", "ITL", "tokens", "end"]
    assert first[3 : 3 + report.WIDTH] == "." * 12 + "=" * 12 + "#" * 24
    assert first.split()[-5:] == ["500.0", "ms", "125.0", "ms", "10+5"] or "10+5" in first
    assert second.endswith("never, sent 2 times")
    assert list(report.timeline([late] * 50))[-1] == "… and 10 more"


def test_the_tick_table_is_as_written_in_the_guide() -> None:
    rig = preemption_of_the_youngest()
    rig.run()
    lines = report.ticks(rig.trace.steps(), rig.trace.requests(), most=6)
    assert "\n".join(lines) + "\n" == GOLDEN_TICKS


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((0, 0, 10), "." * 20),
        ((1, 0, 1000), "#" + "." * 19),
        ((5, 5, 10), "#" * 10 + "+" * 10),
        ((10, 0, 10), "#" * 20),
    ],
)
def test_bars(numbers: tuple[int, int, int], shown: str) -> None:
    assert report.bar(*numbers) == shown


def test_the_summary_has_the_figures_that_people_ask_for() -> None:
    run, _ = small()
    rows = report.summary(summarise(run, Slo(ttft=10.0)))
    for name in (
        "makespan",
        "tokens",
        "throughput",
        "average batch",
        "ticks",
        "preemptions",
        "pool peak",
        "prefix hits",
    ):
        assert rows[name]
    assert rows["requests"] == "20 of 20 finished" and rows["tokens"] == "1200 read, 200 written"
    assert rows["SLO attainment"].startswith("100.0%")


def test_all_files_are_written_and_can_be_read_again(tmp_path: Path) -> None:
    run, trace = small()
    figures = summarise(run, Slo())
    stem = files.stem("dir/some traffic.json", datetime(2026, 1, 2, 3, 4, 5))
    assert stem == "2026-01-02T03-04-05-some-traffic"
    paths = files.write_all(tmp_path / "new", stem, run, figures, trace)
    content = json.loads(paths["json"].read_text())
    assert len(content["requests"]) == 20 and content["summary"]["output_tokens"] == 200
    ticks = [json.loads(line) for line in paths["ticks"].read_text().splitlines()]
    assert sum(tick["batch"] > 0 for tick in ticks) == figures["steps"]
    assert sum(length for tick in ticks for _, _, length in tick["chunks"]) == sum(tick["tokens"] for tick in ticks)
    requests, steps = from_jsonl(paths["trace"].read_text().splitlines())
    assert (len(requests), len(steps)) == (20, len(ticks))
    assert json.loads(paths["perfetto"].read_text())["traceEvents"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run, _ = small()
    with pytest.raises(ConfigError, match="cannot be written"):
        files.write_all(tmp_path / "file" / "x", "s", run, {}, None)


def compared(*specs: str) -> list[tuple[str, dict]]:
    arrivals = generators.generate("bursty:rate=20,requests=60,prompt=200,output=30,spread=0.5,burst=3,keys=2")
    results = []
    for variant in compare.variants(specs):
        made: Setup = setup(num_blocks=120, **variant.engine)
        results.append((variant.name, summarise(simulate(made, arrivals)[0], Slo(ttft=0.5, itl=0.1))))
    return results


def test_a_comparison_lays_variants_side_by_side() -> None:
    results = compared("policies=fcfs,static", "chunk=32,none")
    names = [name for name, _ in results]
    assert names == ["fcfs, prefill_chunk_size 32", "fcfs, prefill_chunk_size none",
                     "static, prefill_chunk_size 32", "static, prefill_chunk_size none"]  # fmt: skip
    lines = list(compare.table(results))
    assert len(lines) == 5 and "goodput/s" in lines[0] and len({len(line) for line in lines}) == 1
    by_name = dict(results)
    better, worse = by_name[names[1]], by_name[names[3]]
    assert better["goodput"] > worse["goodput"] and better["ttft"]["p99"] < worse["ttft"]["p99"]
    shown = list(compare.bars(results))
    longest = max(line.count("#") for line in shown)
    assert longest == 40 and sum("#" * 40 in line for line in shown) >= 3


def test_names_stand_for_all_their_values() -> None:
    assert [variant.name for variant in compare.variants(["policies"])][:2] == ["fcfs", "priority"]
    assert [variant.name for variant in compare.variants(["cache"])] == ["paged", "no-prefix", "contiguous", "off"]
    routers = compare.variants(["router", "replicas=2,4"])
    assert len(routers) == 6 and routers[1].cluster == {"router": "round_robin", "replicas": 4}
    (plain,) = compare.variants(["enable-prefix-caching=off"])
    assert plain.engine == {"enable_prefix_caching": False}


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["colour=red"], "names 'colour'; known are cache, router, replicas, block_size"),
        (["block_size=x"], "'x' is not a whole number"),
        (["cache=big"], "choose caches of paged"),
        (["block_size"], "write NAME=VALUE,VALUE"),
        (["replicas=0"], "replicas is 0; it must be at least 1"),
        (["kv_cache=maybe"], "'maybe' is not on or off"),
        (["policies", "cache", "router"], "makes 72 variants; at most 64"),
    ],
)
def test_comparisons_that_make_no_sense(specs: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare.variants(specs)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_charts_are_drawn_where_matplotlib_is(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart.{ending}"
    charts.draw(compared("policies=fcfs,srf"), path, title="traffic")
    head = path.read_bytes()[:200]
    assert b"<?xml" in head or head.startswith(b"\x89PNG")


def test_charts_elsewhere_are_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png, \.pdf"):
        charts.check(tmp_path / "chart.gif")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mini-vllm\[charts\]'"):
        charts.check(tmp_path / "chart.svg")


def test_percentiles_are_nearest_ranks() -> None:
    from mini_vllm.simulation.records import percentile

    values = [float(i) for i in range(101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 100.0]
    assert percentile([], 0.5) is None and COSTS.seconds is not None
