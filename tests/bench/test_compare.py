import json
from contextlib import contextmanager

import pytest
from bench.fakes import ScriptedClock, ScriptedSubject

from mini_vllm.bench import compare
from mini_vllm.bench.compare import Comparison
from mini_vllm.bench.limits import Limits
from mini_vllm.bench.plan import Selection
from mini_vllm.bench.roofline import SMOLLM2, TINYLLAMA, limit
from mini_vllm.bench.rows import PEERS, WEIGHTS, WORKS
from mini_vllm.bench.subject import SubjectError
from mini_vllm.bench.workloads import SAMPLED32, SINGLE
from mini_vllm.errors import ConfigError, MissingDependencyError

LIMITS = Limits(((1.0, 50e9), (1e9, 36e9)), {"f32": 234e9, "bf16": 468e9, "int8": 935e9})
KEYS = {"work", "weights", "peer", "ours", "theirs", "ratio", "limit_share", "foreign"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, default_model):
    """An empty $PEERS_BASE, where no peer is installed; forms are files that nobody opens."""
    monkeypatch.setenv("PEERS_BASE", str(tmp_path))
    monkeypatch.delenv("LLAMA_BIN", raising=False)
    monkeypatch.setattr("mini_vllm.bench.peers.gguf_form", lambda form, folder: folder / f"{form}.gguf")
    monkeypatch.setattr(compare.machine_limits, "measure", lambda threads, cache: LIMITS)
    monkeypatch.setattr(compare, "_raise_priority", lambda: 0)
    return tmp_path


def install(place, *environments):
    for name in environments:
        python = place / "venv" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    for form in ("smollm2-bf16", "smollm2-f32", "ov-int4", "ov-int8", "ov-f32"):
        (place / "models" / form).mkdir(parents=True, exist_ok=True)


@contextmanager
def unknown(threads):
    """No bandwidth is known beside the samples: shares are those of the run's limits."""
    yield lambda num_bytes: None


def compared(*only, rates=None, quick=True, broken=(), clock=None, gauge=unknown):
    """A run in which every engine has one rate; the record, and who was asked in which order."""
    clock, diary = clock or ScriptedClock(), []

    def start(launch):
        if launch.label in broken:
            raise SubjectError(f"{launch.label}: it does not start")
        return ScriptedSubject(launch.label, [(rates or {}).get(launch.label, 100.0)] * 99, clock, diary)

    run = Comparison(selection=Selection.parse(only), quick=quick, threads=2, clock=clock, start=start, gauge=gauge)
    return run.run(), diary


def test_the_record_has_a_machine_and_rows_of_the_agreed_form(place):
    install(place, "llama-server", "openvino")
    record, _ = compared("single,prefill_512,4bit,q4_1,openvino,llama.cpp")
    assert json.loads(json.dumps(record)) == record
    assert {"cpu", "cores", "threads", "date", "limits", "engines"} <= set(record["machine"])
    assert record["machine"]["engines"] == {"llama.cpp": "1", "mini-vllm": "1", "openvino": "1"}
    assert len(record["ratios"]) == 6
    for entry in record["ratios"]:
        assert set(entry) >= KEYS
        assert entry["work"] in WORKS and entry["weights"] in WEIGHTS and entry["peer"] in PEERS
        assert entry["ratio"] == 1.0 and "error" not in entry


def test_ours_and_the_peers_take_turns(place):
    install(place, "llama-server", "openvino")
    _, diary = compared("single,4bit,q4_1,openvino,llama.cpp")
    asked = [name for name in diary if not name.startswith(("warm", "close"))]
    round_of_all = ["mini-vllm q4_1", "llama.cpp q4_1 (server)", "mini-vllm q4_1", "llama.cpp q4_0 (server)",
                    "mini-vllm q4_1", "openvino int4"]  # fmt: skip
    assert asked == round_of_all * 2  # a pair takes 2 s: two of them fill the 4 s of a quick run
    assert sum(name.startswith("close") for name in diary) == 4


def test_an_absent_peer_is_a_failed_row_with_our_figure_and_its_share(place):
    record, _ = compared("single,f32,openvino,llama.cpp")
    assert [(entry["peer"], entry["ours"], entry["theirs"], entry["ratio"]) for entry in record["ratios"]] == [
        ("llama.cpp", 100.0, None, None), ("openvino", 100.0, None, None),
    ]  # fmt: skip
    for entry in record["ratios"]:
        assert "run `make peers`" in entry["error"]
        assert entry["limit_share"] == pytest.approx(
            100 / limit(SINGLE, SMOLLM2, compare.STORED["f32"], LIMITS), rel=1e-3
        )


@pytest.mark.parametrize("installed", [True, False])
def test_shares_are_of_what_memory_gave_beside_our_samples(place, installed, monkeypatch):
    monkeypatch.setattr(compare, "tinyllama_form", lambda folder: folder / "tinyllama.gguf")
    if installed:
        install(place, "openvino", "llama-server")
    asked = []

    @contextmanager
    def gauge(threads):
        asked.append(threads)
        yield lambda num_bytes: asked.append(num_bytes) or 20e9
        asked.append("closed")

    record, _ = compared("single,tinyllama,sampled32,f32,q4_0,q4_1,openvino,llama.cpp,self", gauge=gauge)
    shares = {(row["work"], row["weights"]): (row["limit_share"], row["bandwidth"]) for row in record["ratios"]}
    now = LIMITS.with_bandwidth(20e9)
    assert shares == {
        (work.name, name): (pytest.approx(100 / limit(work, shape, stored, now), rel=1e-3), 20.0)
        for work, name, shape, stored in (
            (SINGLE, "f32", SMOLLM2, compare.STORED["f32"]),
            (SINGLE, "q4_1", SMOLLM2, compare.STORED["q4_1"]),
            (SAMPLED32, "q4_1", SMOLLM2, compare.STORED["q4_1"]),
            (compare.TINYLLAMA_WORK, "q4_0", TINYLLAMA, compare.TINYLLAMA_STORED),
        )
    }
    assert asked[0] == 2 and asked[-1] == "closed" and len(set(asked)) == 2 + 4  # bytes of a step


def test_a_peer_that_does_not_start_fails_alone(place):
    install(place, "llama-server", "openvino")
    record, _ = compared("single,f32,openvino,llama.cpp", broken=["openvino f32"])
    assert [entry.get("error") for entry in record["ratios"]] == [None, "openvino f32: it does not start"]


def test_when_ours_does_not_start_every_row_says_so(place):
    install(place, "openvino")
    record, _ = compared("single,f32,openvino", broken=["mini-vllm f32"])
    assert record["ratios"][0]["error"] == "ours: mini-vllm f32: it does not start"
    assert record["ratios"][0]["ours"] is None


def test_transformers_meets_the_default_file_in_its_better_type(place):
    install(place, "transformers")
    rates = {"mini-vllm q4_1": 200.0, "transformers bf16": 20.0, "transformers f32": 25.0}
    record, _ = compared("single,transformers", rates=rates)
    found = {entry["weights"]: entry for entry in record["ratios"]}
    assert found["q4_1"]["ratio"] == 8.0
    assert found["q4_1"]["detail"] == "transformers in f32"
    assert (found["bf16"]["ratio"], found["f32"]["ratio"]) == (5.0, 4.0)


def test_rows_of_our_own_need_no_peer():
    record, _ = compared("sampled32,history_2000")
    found = [(entry["work"], entry["detail"]) for entry in record["ratios"]]
    assert found == [("sampled32", "against greedy"), ("history_2000", "batch 1"), ("history_2000", "batch 16")]
    assert record["ratios"][0]["ratio"] == 1.0


def test_a_step_without_kernels_is_measured_for_the_weights_that_are_wanted():
    found = {}
    for only in ("overhead", "overhead,bf16", "overhead,q4_1"):
        record, diary = compared(only)
        found[only] = [(entry["weights"], "error" in entry) for entry in record["ratios"]]
        assert {name for name in diary if not name.startswith(("warm", "close"))} == {
            f"mini-vllm {weights}" for weights, _ in found[only]
        }
    assert found == {
        "overhead": [("q4_1", False), ("bf16", False)],
        "overhead,bf16": [("bf16", False)],
        "overhead,q4_1": [("q4_1", False)],
    }
    broken, _ = compared("overhead", broken=["mini-vllm bf16"])
    assert [(entry["weights"], entry.get("error")) for entry in broken["ratios"]] == [
        ("q4_1", None), ("bf16", "mini-vllm bf16: it does not start"),
    ]  # fmt: skip


@pytest.mark.parametrize("smoke", [False, True])
def test_a_selection_without_a_row_is_refused_before_anything_is_measured(monkeypatch, smoke):
    monkeypatch.setattr(compare.machine_limits, "measure", None)
    monkeypatch.setattr(compare.weights, "pull", None)
    run = Comparison(selection=Selection.parse(["start", "onnxruntime"]), smoke=smoke, gauge=unknown)
    with pytest.raises(ConfigError, match="only is start, onnxruntime, which no row joins: start goes with"):
        run.run()


def test_beside_neighbours_is_the_same_record_of_fewer_rows():
    clock = ScriptedClock()
    start = lambda launch: ScriptedSubject(launch.label, [100.0] * 99, clock)  # noqa: E731
    alone = Comparison(quick=True, threads=2, clock=clock, start=start).beside_neighbours(3)
    among, _ = compared("neighbours,q4_1")
    assert set(alone["machine"]) == set(among["machine"])
    assert (alone["machine"]["mode"], alone["machine"]["threads"]) == ("quick", 2)
    assert alone["machine"]["engines"] == {"mini-vllm": "1"} and alone["machine"]["limits"] == "not measured"
    assert [row["pairs"] for row in alone["ratios"]] == [3] * 6 and [row["pairs"] for row in among["ratios"]] == [2] * 6
    assert [{**row, "pairs": 2} for row in alone["ratios"]] == among["ratios"]


def test_beside_neighbours_fails_where_ours_does_not_start():
    def start(launch):
        raise SubjectError(f"{launch.label}: it does not start")

    with pytest.raises(SubjectError, match="mini-vllm q4_1: it does not start"):
        Comparison(start=start).beside_neighbours(1)


def test_a_quick_run_ends_in_time_and_names_what_it_left_out(place):
    install(place, "llama-server", "openvino", "transformers")

    class Late(ScriptedClock):
        def __call__(self):
            self.now += 60.0
            return self.now

    record, _ = compared("single,bf16,f32", clock=Late())
    errors = {entry["peer"]: entry["error"] for entry in record["ratios"] if "error" in entry}
    assert "left out: the time for the whole run was up" in errors.values()


def test_an_interrupted_run_shows_what_it_has(place):
    install(place, "llama-server", "openvino")
    clock = ScriptedClock()

    def start(launch):
        if launch.label == "mini-vllm q8_0":
            raise KeyboardInterrupt
        return ScriptedSubject(launch.label, [100.0] * 99, clock)

    run = Comparison(
        selection=Selection.parse(["single", "openvino"]), quick=True, clock=clock, start=start, gauge=unknown
    )
    assert [entry["weights"] for entry in run.run()["ratios"]] == ["4bit"]


def test_without_limits_there_are_no_shares(place, monkeypatch):
    def fail(threads, cache):
        raise MissingDependencyError("no compiler")

    monkeypatch.setattr(compare.machine_limits, "measure", fail)
    install(place, "openvino")
    record, _ = compared("single,f32,openvino")
    assert record["machine"]["limits"] == "not measured"
    assert record["ratios"][0]["limit_share"] is None
    assert compared("history_2000")[0]["ratios"][0]["error"] == "the machine's limits are not known"


def test_a_smoke_run_needs_two_engines_and_no_built_one(place, monkeypatch):
    install(place, "llama-server", "transformers")
    (place / "build" / "llama" / "bin").mkdir(parents=True)
    (place / "build" / "llama" / "bin" / "llama-batched-bench").touch()  # built for this machine, and not wanted
    monkeypatch.setattr(compare, "folder_form", lambda form, folder: folder / form)
    monkeypatch.setattr(compare.machine_limits, "measure", None)
    clock, diary = ScriptedClock(), []
    start = lambda launch: ScriptedSubject(launch.label, [100.0] * 9, clock, diary)  # noqa: E731
    record = Comparison(selection=Selection(), smoke=True, threads=2, clock=clock, start=start).run()
    assert record["machine"]["mode"] == "smoke"
    assert [(row["work"], row["peer"], row["ratio"], row["pairs"]) for row in record["ratios"]] == [
        ("single", "llama.cpp", 1.0, 1), ("single", "transformers", 1.0, 1),
        ("batch8", "llama.cpp", 1.0, 1), ("batch8", "transformers", 1.0, 1),
    ]  # fmt: skip
    assert {name for name in diary if name.startswith("close")} == {
        "close mini-vllm q4_1", "close llama.cpp q4_1 (server)", "close transformers f32",
    }  # fmt: skip


def test_ours_in_other_dress_differs_by_a_variable(place):
    plain, empty = compare.plain_split("q4_1", 2), compare.without_kernels("bf16", 2)
    assert plain.environment["MINI_VLLM_SPLIT"] == "static" and empty.environment["MINI_VLLM_ISA"] == "none"
    assert (plain.label, empty.label) == ("mini-vllm q4_1", "mini-vllm bf16")
