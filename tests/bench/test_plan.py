import pytest

from mini_vllm.bench.peers import PEERS as KNOWN
from mini_vllm.bench.plan import OTHER_ROWS, SMOKE_STAGES, STAGES, Selection, planned, select
from mini_vllm.bench.rows import PEERS, WEIGHTS, WORKS
from mini_vllm.errors import ConfigError


def rows(stages):
    return {
        (work.name, weights, meeting.peer)
        for stage in stages
        for meeting in stage.meetings
        for work in meeting.works
        for _, weights in meeting.ours
    }


def test_every_peer_meets_us_in_a_form_that_it_has():
    for stage in STAGES:
        for meeting in stage.meetings:
            assert meeting.form in KNOWN[meeting.peer].forms
    for work, weights, peer in rows(STAGES):
        assert work in WORKS and weights in WEIGHTS and peer in PEERS
    assert {peer for _, _, peer in rows(STAGES)} == set(PEERS) - {"self"}


@pytest.mark.parametrize("work", ["single", "batch8", "batch32", "prefill_512", "prefill_2048"])
def test_every_comparison_of_the_goals_is_planned(work):
    wanted = {
        ("q4_1", "llama.cpp"), ("q4_1", "transformers"), ("4bit", "openvino"), ("4bit", "onnxruntime"),
        ("4bit", "llama.cpp"), ("q8_0", "llama.cpp"), ("8bit", "openvino"), ("8bit", "ctranslate2"),
        ("bf16", "llama.cpp"), ("bf16", "openvino"), ("bf16", "vllm"), ("bf16", "transformers"),
        ("f32", "llama.cpp"), ("f32", "openvino"), ("f32", "vllm"), ("f32", "transformers"),
    }  # fmt: skip
    assert {(weights, peer) for name, weights, peer in rows(STAGES) if name == work} - {("f16", "llama.cpp")} == wanted


def test_a_selection_keeps_only_what_it_names():
    chosen = list(select(STAGES, Selection.parse(["single,q4_1", "transformers"])))
    assert rows(chosen) == {("single", "q4_1", "transformers")}
    assert [stage.our_forms for stage in chosen] == [("q4_1",), ("q4_1",)]
    assert rows(select(STAGES, Selection.parse([]))) == rows(STAGES)
    assert rows(select(STAGES, Selection.parse(["neighbours"]))) == set()


def test_an_unknown_name_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match="only is 'quick'; choose from single, batch8"):
        Selection.parse(["single,quick"])


ALL_ROWS = (*planned(STAGES), *OTHER_ROWS)


def test_every_name_is_of_some_row():
    assert set(planned(STAGES)) == rows(STAGES)
    assert {work for work, _, _ in ALL_ROWS} == set(WORKS)
    assert {weights for _, weights, _ in ALL_ROWS} == set(WEIGHTS)
    assert {peer for _, _, peer in ALL_ROWS} == set(PEERS)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("start,onnxruntime", "only is start, onnxruntime, which no row joins: start goes with q4_1, llama.cpp; "
         "onnxruntime goes with single, batch8, batch32, prefill_512, prefill_2048, 4bit"),
        ("ctranslate2,f32", "only is f32, ctranslate2, which no row joins: f32 goes with single, batch8, batch32, "
         "prefill_512, prefill_2048, llama.cpp, openvino, vllm, transformers; ctranslate2 goes with single, batch8, "
         "batch32, prefill_512, prefill_2048, 8bit"),
        ("memory,overhead,q4_0", "only is memory, overhead, q4_0, which no row joins: memory goes with q4_1, self; "
         "overhead goes with q4_1, bf16, self; q4_0 goes with tinyllama, llama.cpp"),
        ("single,q4_1,openvino", "only is single, q4_1, openvino, which no row joins: single goes with q4_1, 4bit, "),
    ],
)  # fmt: skip
def test_names_that_no_row_joins_are_refused_with_what_each_goes_with(only, message):
    with pytest.raises(ConfigError) as error:
        Selection.parse([only]).check(ALL_ROWS)
    assert str(error.value).startswith(message) and error.value.param == "only"


@pytest.mark.parametrize(
    "only", ["", "start", "onnxruntime", "single,start,onnxruntime", "overhead,bf16", "self,memory"]
)
def test_names_that_some_row_joins_are_taken(only):
    Selection.parse([only]).check(ALL_ROWS)


def test_a_smoke_run_has_rows_of_its_own():
    with pytest.raises(ConfigError) as error:
        Selection.parse(["batch32"]).check(planned(SMOKE_STAGES))
    assert str(error.value) == "only is batch32, which no row joins: batch32 goes with no other here"
