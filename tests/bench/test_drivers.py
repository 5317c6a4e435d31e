"""The drivers that need nothing but the test environment, on a tiny model with random weights."""

from dataclasses import replace

import pytest

from mini_vllm.bench import forms, peers
from mini_vllm.bench.roofline import TINYLLAMA
from mini_vllm.bench.subject import Subject, SubjectError
from mini_vllm.bench.workloads import Work

TINY = replace(TINYLLAMA, num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2,
               head_dim=16, vocab_size=400)  # fmt: skip
WORK = Work("work", "output", 3, 20, 5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    forms.write_random(folder / "models" / "original.gguf", TINY, seed=1)
    return folder


@pytest.fixture(autouse=True)
def base(place, monkeypatch):
    monkeypatch.setenv("PEERS_BASE", str(place))
    monkeypatch.setattr(forms.weights, "pull", lambda name: place / "models" / "original.gguf")


def low_ids(launch):
    return replace(launch, last_id=TINY.vocab_size - 1, first_id=300)


def test_ours_answers_greedily_and_sampled(place):
    launch = low_ids(peers.ours("f32", threads=1, max_model_len=512, num_blocks=64))
    with Subject(launch) as subject:
        assert subject.label == "mini-vllm f32"
        assert subject.measure(WORK, seed=1).rate > 0
        assert subject.measure(replace(WORK, temperature=0.8, top_p=0.95), seed=1).rate > 0


def test_transformers_needs_no_installation_where_it_is_a_test_reference(place):
    forms.folder_form("f32", place / "models")
    with Subject(low_ids(peers.peer_launch("transformers", "f32", threads=1))) as subject:
        assert subject.measure(WORK, seed=1).rate > 0
        with pytest.raises(SubjectError, match="driven greedily only"):
            subject.measure(replace(WORK, temperature=0.8), seed=1)


def test_a_peer_without_its_form_of_the_model_is_named(place):
    python = place / "venv" / "openvino" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(SubjectError, match=r"openvino int4: .*ov-int4 does not exist; run `make peers`"):
        peers.peer_launch("openvino", "int4", threads=1)
    with pytest.raises(SubjectError, match=r"vllm: not installed \(no .*\); run `make peers`"):
        peers.peer_launch("vllm", "bf16", threads=1)


def test_llama_cpp_is_its_own_programs_where_they_were_built(place, monkeypatch):
    folder = place / "build" / "llama" / "bin"
    folder.mkdir(parents=True)
    (folder / "llama-batched-bench").touch()
    (folder.parent / "version.txt").write_text("b123\n")
    launch = peers.peer_launch("llama.cpp", "f32", threads=2)
    assert launch.label == "llama.cpp f32"
    assert launch.command[1].endswith("llamacpp.py")
    assert (launch.settings["version"], launch.settings["threads"]) == ("b123", 2)
    assert launch.environment["OMP_NUM_THREADS"] == "2"
