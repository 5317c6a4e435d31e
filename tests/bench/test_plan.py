import pytest

from mini_vllm.bench.peers import PEERS as KNOWN
from mini_vllm.bench.plan import STAGES, Selection, select
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
