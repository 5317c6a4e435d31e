"""Safetensors folders: equal to the safetensors library where they are good, refused with a reason where not."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from weights import tiny

from mini_vllm.errors import ModelError, ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.quantization import dequantize
from mini_vllm.weights import open_checkpoint

NAME = "model.norm.weight"


def raw(header: Any, data: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def folder_with(path: Path, content: bytes) -> Path:
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(content)
    return path


def refused(path: Path, pattern: str, kind: type[ModelError] = WeightsError) -> None:
    with pytest.raises(kind, match=pattern) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_equals_the_safetensors_library(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {name: torch.randn(values.shape).to(dtype) for name, values in tiny.make_tensors("llama").items()}
    tiny.write_folder(tmp_path, {})
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours = open_checkpoint(tmp_path)
    assert ours.names() == frozenset(tensors)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as theirs:
        for name in theirs.keys():  # noqa: SIM118 (it is no dict)
            tensor = ours.get(name)
            assert tensor.shape == tuple(theirs.get_slice(name).get_shape())
            assert not tensor.data.flags.owndata
            np.testing.assert_array_equal(dequantize(tensor), theirs.get_tensor(name).float().numpy())


def test_float64_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.0, 1e300, -2.5])
    content = raw({NAME: {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}}, values.tobytes())
    tensor = open_checkpoint(folder_with(tmp_path, content)).get(NAME)
    assert (tensor.format, dequantize(tensor).tolist()) == ("f32", [1.0, float("inf"), -2.5])


@pytest.mark.parametrize("padding", range(4))
def test_unaligned_tensors_are_copied(padding: int, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    header = json.dumps({NAME: {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}).encode()
    header += b" " * (-(len(header) + 8) % 4 + padding)
    tensor = open_checkpoint(folder_with(tmp_path, raw(header, values.tobytes()))).get(NAME)
    assert tensor.data.ctypes.data % 4 == 0
    assert tensor.data.flags.owndata == (padding != 0)
    assert dequantize(tensor).tolist() == values.tolist()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "I8", "U8", "F4"])
def test_other_dtypes_are_refused_by_name_when_asked_for(dtype: str, tmp_path: Path) -> None:
    size = 4 if dtype == "F4" else 8
    content = raw({NAME: {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}}, bytes(size))
    file = open_checkpoint(folder_with(tmp_path, content))
    with pytest.raises(UnsupportedModelError, match=f"tensor '{NAME}' is {dtype}"):
        file.get(NAME)


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "header length needs 8 bytes"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "header needs 100 bytes"),
    "header of 2^63 bytes": (struct.pack("<Q", 2**63) + b"{}", "header length is 9223372036854775808"),
    "not JSON": (raw(b"{nope"), "the header cannot be read"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "the header cannot be read"),
    "nested without end": (raw(b"[" * 100_000), "the header cannot be read"),
    "a list": (raw([]), "the header is not a JSON object"),
    "an entry that is a list": (raw({"w": [1]}), "'w' must have dtype, shape and two data_offsets"),
    "an entry without shape": (raw({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), "'w' must have dtype"),
    "one offset": (raw({"w": entry(data_offsets=[0])}, bytes(8)), "'w' must have dtype"),
    "offsets as text": (raw({"w": entry(data_offsets=["0", "8"])}, bytes(8)), "'w' has data_offsets"),
    "offsets reversed": (raw({"w": entry(data_offsets=[8, 0])}, bytes(8)), "'w' has data_offsets"),
    "offsets negative": (raw({"w": entry(data_offsets=[-8, 0])}, bytes(8)), "'w' has data_offsets"),
    "truncated": (raw({"w": entry()}, bytes(7)), r"'w' has data_offsets \[0, 8\] but there are 7 data bytes"),
    "unknown dtype": (raw({"w": entry(dtype="F31")}, bytes(8)), "'w' has the unknown dtype 'F31'"),
    "dtype as a list": (raw({"w": entry(dtype=[])}, bytes(8)), "unknown dtype"),
    "shape as text": (raw({"w": entry(shape="2")}, bytes(8)), "'w' has the shape '2'"),
    "negative size": (raw({"w": entry(shape=[-2])}, bytes(8)), "'w' has the shape"),
    "boolean size": (raw({"w": entry(shape=[True])}, bytes(8)), "'w' has the shape"),
    "a product that wraps": (raw({"w": entry(shape=[2**33, 2**33])}, bytes(8)), "'w' .* needs 2951479051793528"),
    "too few bytes": (raw({"w": entry(shape=[3])}, bytes(8)), r"'w' \(F32, \[3\]\) needs 12 bytes but .* give 8"),
    "overlap": (raw({"v": entry(data_offsets=[4, 12]), "w": entry()}, bytes(12)), "'w' and 'v' overlap"),
    "a hole": (raw({"v": entry(data_offsets=[12, 20]), "w": entry()}, bytes(20)), "cover 16 of 20 data bytes"),
    "bytes left over": (raw({"w": entry()}, bytes(9)), "cover 8 of 9 data bytes"),
    "a key twice": (raw(b'{"w": 1, "w": 2}'), "'w' is listed twice"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(case: str, tmp_path: Path) -> None:
    content, pattern = BROKEN[case]
    refused(folder_with(tmp_path, content), pattern)


def test_truncated_anywhere(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, tiny.make_tensors("llama"))
    path = tmp_path / "model.safetensors"
    for length in [path.stat().st_size - 1, *reversed(range(0, 4096, 3))]:
        os.truncate(path, length)
        with pytest.raises(WeightsError):
            open_checkpoint(tmp_path)


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, tiny.make_tensors("llama"))
    whole = (tmp_path / "model.safetensors").read_bytes()
    generator = np.random.default_rng(3)
    outcomes = {"opened": 0, "refused": 0}
    for _ in range(800):
        changed = bytearray(whole)
        changed[generator.integers(0, 2500)] = generator.integers(32, 127)
        (tmp_path / "model.safetensors").write_bytes(changed)
        try:
            file = open_checkpoint(tmp_path)
            for name in file.names():
                file.get(name)
            outcomes["opened"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def write_shards(folder: Path, *, index: bool = True) -> dict[str, np.ndarray]:
    tensors = tiny.make_tensors("llama")
    weight_map = {}
    for number in range(3):
        file_name = f"model-{number + 1:05d}-of-00003.safetensors"
        shard = {name: values for place, (name, values) in enumerate(tensors.items()) if place % 3 == number}
        tiny.save_file(shard, folder / file_name)
        weight_map |= dict.fromkeys(shard, file_name)
    (folder / "config.json").write_text("{}")
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
def test_shards(index: bool, tmp_path: Path) -> None:
    tensors = write_shards(tmp_path, index=index)
    (tmp_path / "consolidated.safetensors").write_bytes(b"another form of the same weights")
    file = open_checkpoint(tmp_path)
    assert file.names() == frozenset(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(dequantize(file.get(name)), values)


@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
def test_lod_03_a_missing_shard_is_named(index: bool, tmp_path: Path) -> None:
    write_shards(tmp_path, index=index)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, r"3 .*but model-00002-of-00003\.safetensors is missing")


def test_lod_03_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    refused(tmp_path, r"model-00002-of-00003\.safetensors: tensor 'model\..*' has data_offsets")


def test_lod_03_the_same_key_in_two_shards(tmp_path: Path) -> None:
    tensors = write_shards(tmp_path)
    first = next(iter(tensors))
    shard = tmp_path / "model-00002-of-00003.safetensors"
    tiny.save_file({first: tensors[first], **safetensors.numpy.load_file(shard)}, shard)
    refused(tmp_path, f"tensor '{first}' is in both model-00001-of-00003.safetensors and model-00002-of-00003")


def test_lod_13_a_tensor_that_only_the_index_knows(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["lm_head.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(listed))
    refused(tmp_path, "says that model-00001-of-00003.safetensors has the tensor 'lm_head.weight', but it does not")


@pytest.mark.parametrize("target", ["../model.safetensors", "/etc/passwd", "a/../b.safetensors", "..", 7, "x.bin"])
def test_sec_07_an_index_cannot_point_outside_its_folder(target: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": target}}))
    refused(tmp_path, "is not the name of a safetensors file in the same folder")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_pickles_are_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    refused(tmp_path, f"{name}, a pickle, .* save_pretrained")


def test_folders_without_weights_or_settings(tmp_path: Path) -> None:
    refused(tmp_path, "there is no config.json", ModelNotFoundError)
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "there are no weights; a model needs")
    (tmp_path / "model.onnx").write_bytes(b"")
    refused(tmp_path, "weights are only in model.onnx")
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"")
    refused(tmp_path, "there are 2 safetensors files and no model.safetensors.index.json")


def test_lora_adapters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "this is a LoRA adapter, .* merge it", UnsupportedModelError)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("{", "is not valid JSON"), ("[]", "must hold a JSON object, not list"), ("[" * 10**5, "is not valid JSON")],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_settings(name: str, text: str, pattern: str, tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, tiny.make_tensors("llama"))
    (tmp_path / name).write_text(text)
    refused(tmp_path, f"{name}: {pattern}")


def test_lod_10_generation_config_is_read(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, tiny.make_tensors("llama"), {"model_type": "llama", "eos_token_id": 2})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7], "top_k": 1}')
    file = open_checkpoint(tmp_path)
    assert file.config["eos_token_id"] == 2
    assert file.generation_config == {"eos_token_id": [2, 7], "top_k": 1}
    assert file.tokenizer_metadata is None


def test_names_are_canonical(tmp_path: Path) -> None:
    """Decoders saved without the part that holds them, and buffers that are no weights (as in the gpt2 repository)."""
    full = tiny.make_tensors("gpt2")
    bare = {name.removeprefix("transformer."): values for name, values in full.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)
    bare["h.1.attn.masked_bias"] = np.ones((), np.float32)
    file = open_checkpoint(tiny.write_folder(tmp_path / "gpt2", bare, {"model_type": "gpt2"}))
    assert file.names() == frozenset(full)
    assert file.get("transformer.h.0.ln_1.weight").name == "transformer.h.0.ln_1.weight"

    full = tiny.make_tensors("llama", tied=False)
    bare = {name.removeprefix("model."): values for name, values in full.items()}
    bare["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    assert open_checkpoint(tiny.write_folder(tmp_path / "llama", bare)).names() == frozenset(full)


def test_get_of_an_unknown_name(tmp_path: Path) -> None:
    file = open_checkpoint(tiny.write_folder(tmp_path, tiny.make_tensors("llama")))
    with pytest.raises(WeightsError, match=r"there is no tensor 'model\.nothing'"):
        file.get("model.nothing")
    file.close()
