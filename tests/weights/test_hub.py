"""Models of a hub, against a stand-in server: what is fetched, what the cache answers, what is refused."""

from pathlib import Path

import numpy as np
import pytest
from weights import tiny
from weights.conftest import StandIn

from mini_vllm.errors import ModelError, ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.quantization import dequantize
from mini_vllm.weights import open_checkpoint, pull, resolve, resolve_tokenizer
from mini_vllm.weights.hub import HubName, parse_name


@pytest.fixture
def repository(stand_in: StandIn) -> Path:
    """A tiny safetensors model with a tokenizer, and files that nobody needs."""
    folder = tiny.write_folder(stand_in.root / "hub" / "acme" / "tiny-llama", tiny.make_tensors("llama"))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "README.md").write_text("about")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    return folder


def gguf_repository(stand_in: StandIn, *names: str) -> dict[str, np.ndarray]:
    folder = stand_in.root / "hub" / "acme" / "tiny-GGUF"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for index, name in enumerate(names):
        tiny.write_gguf(folder / name, "llama", tiny.make_tensors("llama", seed=index))
    return tiny.make_tensors("llama", seed=0)


@pytest.mark.usefixtures("repository")
def test_a_repository_is_fetched_once_and_only_what_is_needed(stand_in: StandIn, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = pull("acme/tiny-llama", progress=lambda done, total: seen.append((done, total)))
    assert sorted(file.name for file in path.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert path.is_relative_to(tmp_path / "hf" / "hub")
    tensors = tiny.make_tensors("llama")
    checkpoint = open_checkpoint(path)
    for name, values in tensors.items():
        np.testing.assert_array_equal(dequantize(checkpoint.get(name)), values)
    size = sum(file.stat().st_size for file in path.iterdir())
    assert seen[-1] == (size, size)
    assert stand_in.requests()

    assert resolve("acme/tiny-llama") == path
    assert stand_in.requests() == []


@pytest.mark.usefixtures("repository")
def test_a_tokenizer_alone_brings_no_weights(stand_in: StandIn) -> None:
    folder = resolve_tokenizer("acme/tiny-llama")
    assert sorted(file.name for file in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    ]
    stand_in.requests()
    assert resolve_tokenizer("acme/tiny-llama") == folder
    assert stand_in.requests() == []
    assert resolve("acme/tiny-llama") == folder
    assert (folder / "model.safetensors").exists()


@pytest.mark.usefixtures("repository")
def test_offline_uses_the_cache_and_nothing_else(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE forbids to fetch it"):
        resolve("acme/tiny-llama")
    assert stand_in.requests() == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = resolve("acme/tiny-llama")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stand_in.requests()
    assert resolve("acme/tiny-llama") == path
    assert stand_in.requests() == []


@pytest.mark.usefixtures("repository")
def test_an_incomplete_snapshot_is_completed(stand_in: StandIn) -> None:
    path = resolve("acme/tiny-llama")
    (path / "model.safetensors").unlink()
    assert resolve("acme/tiny-llama") == path
    assert open_checkpoint(path).names() == frozenset(tiny.make_tensors("llama"))


@pytest.mark.usefixtures("repository")
def test_revisions(stand_in: StandIn) -> None:
    main = resolve("acme/tiny-llama")
    assert resolve("acme/tiny-llama", revision=main.name) == main
    with pytest.raises(ModelNotFoundError, match="no revision 'v9'"):
        resolve("acme/tiny-llama", revision="v9")


@pytest.mark.usefixtures("repository")
def test_unknown_repositories_say_what_was_tried_and_what_is_near(stand_in: StandIn) -> None:
    resolve("acme/tiny-llama")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("acme/tiny-lama")
    message = str(caught.value)
    assert "acme/tiny-lama: the hub has no such repository" in message
    assert "no such file or folder, no alias, not in the local hub cache" in message
    assert message.endswith("did you mean acme/tiny-llama?")
    assert caught.value.code == "model_not_found"


def test_gated_repositories(stand_in: StandIn) -> None:
    folder = stand_in.root / "hub" / "acme" / "gated"
    folder.mkdir(parents=True)
    (folder / ".gated").touch()
    with pytest.raises(ModelNotFoundError, match="is gated; accept its terms on the hub and set HF_TOKEN"):
        resolve("acme/gated")


def test_a_hub_that_cannot_be_reached(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match=r"the hub cannot be reached .*; check the network, HF_ENDPOINT"):
        resolve("acme/tiny-llama")


def test_only_pickles_or_an_adapter(stand_in: StandIn) -> None:
    folder = stand_in.root / "hub" / "acme" / "old"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(WeightsError, match=r"only pytorch_model\.bin, a pickle, which is refused"):
        resolve("acme/old")
    folder = stand_in.root / "hub" / "acme" / "lora"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")
    with pytest.raises(UnsupportedModelError, match="a LoRA adapter"):
        resolve("acme/lora")
    assert not any(line.startswith("GET /acme") for line in stand_in.requests())


@pytest.mark.parametrize("choice", ["Q8_0", "q8_0", "tiny.Q8_0.gguf"])
def test_one_gguf_of_a_repository(choice: str, stand_in: StandIn) -> None:
    tensors = gguf_repository(stand_in, "tiny.Q8_0.gguf", "tiny.Q4_1.gguf")
    path = resolve(f"acme/tiny-GGUF:{choice}")
    assert path.name == "tiny.Q8_0.gguf"
    assert [file.name for file in path.parent.iterdir()] == ["tiny.Q8_0.gguf"]
    name = "model.norm.weight"
    np.testing.assert_array_equal(dequantize(open_checkpoint(path).get(name)), tensors[name])
    stand_in.requests()
    assert resolve(f"acme/tiny-GGUF:{choice}") == path
    assert stand_in.requests() == []


def test_a_choice_that_must_be_made(stand_in: StandIn) -> None:
    gguf_repository(stand_in, "tiny.Q8_0.gguf", "tiny.Q4_1.gguf")
    with pytest.raises(
        ModelNotFoundError, match=r"has several GGUF files; choose one, as in acme/tiny-GGUF:tiny\.Q4_1"
    ):
        resolve("acme/tiny-GGUF")
    with pytest.raises(ModelNotFoundError, match=r"tiny-GGUF:Q2_K: the repository has no such file; choose one"):
        resolve("acme/tiny-GGUF:Q2_K")


def test_the_only_gguf_needs_no_choice(stand_in: StandIn) -> None:
    gguf_repository(stand_in, "tiny.gguf")
    assert resolve("acme/tiny-GGUF").name == "tiny.gguf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acme/m", HubName("acme/m")),
        ("gpt2", HubName("gpt2")),
        ("a/b.c-d:Q4_K_M", HubName("a/b.c-d", "Q4_K_M")),
        ("a/b:sub/f.gguf", HubName("a/b", "sub/f.gguf")),
        ("a/b/c", None),
        ("a/..", None),
        ("../a", None),
        ("a/b:../c.gguf", None),
        ("a b/c", None),
        ("a--b/c", None),
    ],
)
def test_names_of_repositories(text: str, expected: HubName | None) -> None:
    assert parse_name(text) == expected


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/nothing",
        "..\\..\\x",
        "%2e%2e/",
        "C:\\x",
        "a\0b",
        "x" * 10_000,
        "",
        "a/b/../c",
        "~nobody-here/x",
        "a//b",
    ],
)
def test_sec_07_names_that_reach_outside_are_not_found(name: str, stand_in: StandIn) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert isinstance(caught.value, ModelNotFoundError)
    assert len(str(caught.value)) < 400
    assert stand_in.requests() == []


def test_sec_07_a_revision_cannot_leave_the_cache(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for revision in ("../../../..", "/etc"):
        with pytest.raises(ModelNotFoundError):
            resolve("acme/m", revision=revision)
