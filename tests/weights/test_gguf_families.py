"""Every architecture in GGUF against the safetensors folder of the same weights: names, contents, settings."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from weights import tiny

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.quantization import dequantize
from mini_vllm.weights import open_checkpoint

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"]
# Gemma 2 has no output matrix of its own.
CASES = [(name, tied) for name in ARCHITECTURES for tied in (True, False) if tied or name != "gemma2"]


def config_of(path: Path, architecture: str = "llama", **options: Any) -> dict[str, Any]:
    return open_checkpoint(tiny.write_gguf(path, architecture, tiny.make_tensors(architecture), **options)).config


def conv1d(name: str) -> bool:
    return ".attn.c_" in name or ".mlp.c_" in name


@pytest.mark.parametrize(("architecture", "tied"), CASES)
def test_same_names_and_contents_as_safetensors(architecture: str, tied: bool, tmp_path: Path) -> None:
    tensors = tiny.make_tensors(architecture, tied=tied)
    folder = open_checkpoint(tiny.write_folder(tmp_path / "hf", tensors, {"model_type": architecture}))
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", architecture, tensors))
    assert (folder.layout, file.layout) == ("hf", "gguf")
    assert file.names() == folder.names() == frozenset(tensors)
    assert file.config["tie_word_embeddings"] is tied
    for name in tensors:
        ours, theirs = dequantize(file.get(name)), dequantize(folder.get(name))
        if architecture == "gpt2" and conv1d(name) and ours.ndim == 2:
            theirs = theirs.T
        assert file.get(name).name == name
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-7 if "norm" in name else 0, err_msg=name)


@pytest.mark.parametrize("format", ["F16", "Q8_0", "Q4_1"])
def test_lod_05_llama_rows_are_unpermuted_in_every_format(format: str, tmp_path: Path) -> None:
    tensors = tiny.make_tensors("llama")
    kind = gguf.GGMLQuantizationType[format]
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, quantize=kind))
    for part in ("q_proj", "k_proj", "v_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        kept = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], kind), kind)
        assert file.get(name).format == format.lower()
        np.testing.assert_array_equal(dequantize(file.get(name)), kept)


def test_lod_05_llama_biases_are_unpermuted_too(tmp_path: Path) -> None:
    tensors = tiny.make_tensors("llama")
    for part, heads in (("q", tiny.HEADS), ("k", tiny.KV_HEADS)):
        size = heads * tiny.HEAD_DIM
        tensors[f"model.layers.0.self_attn.{part}_proj.bias"] = np.arange(size, dtype=np.float32)
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors))
    assert file.config["attention_bias"] is True
    for part, heads in (("q", tiny.HEADS), ("k", tiny.KV_HEADS)):
        found = dequantize(file.get(f"model.layers.0.self_attn.{part}_proj.bias"))
        assert found.tolist() == list(range(heads * tiny.HEAD_DIM))


def test_lod_05_other_architectures_keep_their_rows(tmp_path: Path) -> None:
    tensors = tiny.make_tensors("qwen2")
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "qwen2", tensors))
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(dequantize(file.get(name)), tensors[name])


def test_llama_settings(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m.gguf")
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 80,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2],
    }
    assert config == expected


def test_mistral_is_llama_with_a_window(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m.gguf", edit=lambda writer: writer.add_sliding_window(24))
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 24)
    assert config["architectures"] == ["MistralForCausalLM"]


def test_gpt2_settings(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m.gguf", "gpt2")
    found = {key: config[key] for key in ("n_embd", "n_layer", "n_head", "n_positions", "n_inner", "model_type")}
    assert found == {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 96, "model_type": "gpt2",
    }  # fmt: skip
    assert config["layer_norm_epsilon"] == 1e-5


def test_gemma2_settings(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(24)
        writer.add_attn_logit_softcapping(40.0)
        writer.add_final_logit_softcapping(20.0)

    config = config_of(tmp_path / "m.gguf", "gemma2", edit=edit)
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (40.0, 20.0)
    assert (config["query_pre_attn_scalar"], config["sliding_window"]) == (16, 24)


def test_gemma3_settings(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(24)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        writer.add_array("gemma3.attention.sliding_window_pattern", [False, True])
        writer.add_float32("gemma3.attention.scale", 168**-0.5)

    config = config_of(tmp_path / "m.gguf", "gemma3", edit=edit)
    assert (config["model_type"], config["layer_types"]) == ("gemma3_text", ["full_attention", "sliding_attention"])
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (10000.0, 10000.0)
    assert config["query_pre_attn_scalar"] == 168.0
    assert config["final_logit_softcapping"] is None


def test_phi3_settings(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(24)
        writer.add_rope_dimension_count(12)

    config = config_of(tmp_path / "m.gguf", "phi3", edit=edit)
    assert (config["sliding_window"], config["partial_rotary_factor"]) == (24, 0.75)
    assert config["original_max_position_embeddings"] == 128


def test_yarn_scaling(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_yarn_beta_fast(16.0)
        writer.add_rope_scaling_attn_factors(2.0)

    assert config_of(tmp_path / "m.gguf", "qwen2", edit=edit)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "attention_factor": 2 * (1 + 0.1 * math.log(4)),
    }


def test_lod_07_rope_freqs_become_frequency_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)
    tensors = tiny.make_tensors("llama")
    path = tiny.write_gguf(
        tmp_path / "m.gguf", "llama", tensors, edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors)
    )
    file = open_checkpoint(path)
    assert file.config["rope_scaling"] == {"rope_type": "factors", "factors": factors.tolist()}
    assert file.names() == frozenset(tensors)


def test_lod_07_rope_freqs_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"'rope_freqs\.weight' must hold 8 positive factors"):
        config_of(
            tmp_path / "m.gguf", edit=lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(7, np.float32))
        )


def test_longrope_factors(tmp_path: Path) -> None:
    long, short = np.full(8, 4, np.float32), np.full(8, 2, np.float32)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_tensor("rope_factors_long.weight", long)
        writer.add_tensor("rope_factors_short.weight", short)

    config = config_of(tmp_path / "m.gguf", "phi3", edit=edit)
    assert config["original_max_position_embeddings"] == 64
    assert config["rope_scaling"] == {"rope_type": "longrope", "long_factor": [4.0] * 8, "short_factor": [2.0] * 8}


def test_lod_08_every_id_that_ends_a_turn_is_collected(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(7)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 9)
        writer.add_float32("general.sampling.temp", 0.5)

    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.make_tensors("llama"), edit=edit))
    assert file.generation_config == {"eos_token_id": [2, 7, 9], "bos_token_id": 1, "temperature": 0.5}
    assert file.config["eos_token_id"] == [2, 7, 9]


def test_unknown_tensors_keep_their_name(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32))
        writer.add_tensor("output.scale", np.ones(4, np.float32))

    tensors = tiny.make_tensors("llama")
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, edit=edit))
    assert file.names() - frozenset(tensors) == {"blk.0.attn_sinks.weight", "output.scale"}


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    tiny.finish(writer)
    with pytest.raises(UnsupportedModelError, match=r"architecture 'mamba' is not supported.*supported: llama"):
        open_checkpoint(tmp_path / "m.gguf")


def test_mixtures_of_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="mixtures of experts"):
        config_of(tmp_path / "m.gguf", edit=lambda writer: writer.add_expert_count(8))


def test_unsupported_number_formats_are_refused_when_opening(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        kind = gguf.GGMLQuantizationType.IQ4_XS
        writer.add_tensor("blk.0.extra.weight", np.zeros((1, 136), np.uint8), raw_dtype=kind)

    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.extra\.weight' has the number format IQ4_XS"):
        config_of(tmp_path / "m.gguf", edit=edit)


def test_views_stay_valid_after_close(tmp_path: Path) -> None:
    tensors = tiny.make_tensors("qwen2")
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "qwen2", tensors))
    view = file.get("model.norm.weight")
    file.close()
    assert not view.data.flags.owndata
    np.testing.assert_array_equal(dequantize(view), tensors["model.norm.weight"])


def test_split_files_are_read_as_one(tmp_path: Path) -> None:
    tensors = tiny.make_tensors("llama")
    names = list(tensors)
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    tiny.write_gguf(first, "llama", {name: tensors[name] for name in names[:5]})
    writer = gguf.GGUFWriter(second, "llama")
    tiny.add_tensors(writer, "llama", {name: tensors[name] for name in names[5:]})
    tiny.finish(writer)
    for path in (first, second):
        file = open_checkpoint(path)
        assert file.names() == frozenset(tensors)
        for name in names:
            np.testing.assert_array_equal(dequantize(file.get(name)), tensors[name])
    second.unlink()
    with pytest.raises(WeightsError, match=r"has 2 parts and m-00002-of-00002.gguf is missing"):
        open_checkpoint(first)


def test_get_of_an_unknown_name(tmp_path: Path) -> None:
    file = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.make_tensors("llama")))
    with pytest.raises(WeightsError, match=r"there is no tensor 'model\.nothing'"):
        file.get("model.nothing")
