import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from mini_vllm.bench import forms
from mini_vllm.bench.gguf_writer import TensorEntry, encode, random_q4_0, write_gguf
from mini_vllm.bench.roofline import TINYLLAMA
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import dequantize
from mini_vllm.text import Tokenizer
from mini_vllm.weights import open_checkpoint
from mini_vllm.weights.gguf import GGUFFile, MetadataArray

SMALL = replace(TINYLLAMA, num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2,
                head_dim=16, vocab_size=300)  # fmt: skip
KINDS = gguf.GGMLQuantizationType


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_blocks_equal_the_reference_quantizer_s(format):
    values = np.random.default_rng(1).normal(size=(64, 96)).astype(np.float32)
    values[3, :32] = 0
    expected = gguf.quants.quantize(values, KINDS[format.upper()])
    assert encode(values, format).tobytes() == expected.tobytes()


def test_random_blocks_have_the_deviation_asked_for():
    shape = (256, 512)
    data = random_q4_0(shape, np.random.default_rng(1), 0.02)
    values = dequantize(HostTensor("w", "q4_0", shape, data))
    assert values.std() == pytest.approx(0.02, rel=0.02)


def test_every_kind_of_metadata_is_read_back(tmp_path):
    metadata = {
        "general.architecture": "llama", "a.flag": True, "a.count": 7, "a.low": -2, "a.rate": 0.5,
        "a.words": MetadataArray("string", ["x", "é"]), "a.numbers": MetadataArray("i32", np.array([-1, 2], np.int32)),
    }  # fmt: skip
    tensor = TensorEntry("t", "f32", (3,), lambda: np.arange(3, dtype=np.float32).view(np.uint8))
    write_gguf(tmp_path / "x.gguf", metadata, [tensor, replace(tensor, name="u")])
    file = GGUFFile(tmp_path / "x.gguf")
    found = dict(file.metadata)
    assert found.pop("a.words").values == ["x", "é"]
    assert found.pop("a.numbers").values.tolist() == [-1, 2]
    assert found == {key: value for key, value in metadata.items() if not isinstance(value, MetadataArray)}
    assert file.data(file.tensors["u"]).view(np.float32).tolist() == [0, 1, 2]
    file.close()
    assert gguf.GGUFReader(tmp_path / "x.gguf").get_field("a.count").contents() == 7
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_a_random_model_opens_with_its_shape_and_a_vocabulary(tmp_path):
    path = tmp_path / "random.gguf"
    forms.write_random(path, SMALL, seed=1)
    checkpoint = open_checkpoint(path)
    assert type(SMALL).from_config(checkpoint.config) == SMALL
    assert checkpoint.get("model.layers.1.mlp.down_proj.weight").shape == (64, 96)
    assert Tokenizer.from_gguf(checkpoint.tokenizer_metadata).vocab_size == 300
    checkpoint.close()
    again = tmp_path / "again.gguf"
    forms.write_random(again, SMALL, seed=1)
    assert again.read_bytes() == path.read_bytes()


@pytest.fixture
def original(tmp_path, monkeypatch):
    path = tmp_path / "original.gguf"
    forms.write_random(path, SMALL, seed=2)
    monkeypatch.setattr(forms.weights, "pull", lambda name: path)
    return path


def values_of(path, name):
    checkpoint = open_checkpoint(path)
    found = dequantize(checkpoint.get(name))
    checkpoint.close()
    return found


def test_every_gguf_form_holds_the_same_values_rounded_once(tmp_path, original):
    name = "model.layers.0.self_attn.q_proj.weight"
    exact = values_of(original, name)
    for format, tolerance in (("f32", 0), ("f16", 1e-3), ("bf16", 4e-3), ("q8_0", 1e-2)):
        path = forms.gguf_form(format, tmp_path / "forms")
        assert GGUFFile(path).metadata["general.file_type"] == forms.FILE_TYPES[format]
        assert np.abs(values_of(path, name) - exact).max() <= tolerance * np.abs(exact).max()
    stamp = path.stat().st_mtime_ns
    assert forms.gguf_form("q8_0", tmp_path / "forms").stat().st_mtime_ns == stamp, "made once"
    assert forms.gguf_form("q4_1", tmp_path / "forms").resolve() == original.resolve()


def test_the_folder_form_is_what_transformers_and_others_read(tmp_path, original):
    folder = forms.folder_form("f32", tmp_path / "forms")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(tensors[name], values_of(original, name))
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float32"
    checkpoint = open_checkpoint(forms.folder_form("bf16", tmp_path / "forms"))
    assert checkpoint.get(name).format == "bf16"
    checkpoint.close()
