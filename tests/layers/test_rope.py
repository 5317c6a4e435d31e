"""Rope frequencies and tables equal transformers', and scalings that depend on a length are fixed by the maximum."""

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mini_vllm.errors import ModelError
from mini_vllm.layers import RopeSpec, inverse_frequencies, rope_tables
from mini_vllm.models.configuration import rope_spec

SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.7,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "original_max_position_embeddings": 2048,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}


def _config(scaling, **changes):
    rope = {"rope_theta": 50000.0, **scaling}
    return transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=8192, rope_parameters=rope, **changes
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name):
    config = _config(SCALINGS[name])
    expected, factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, seq_len=12000)
    ours, our_factor = inverse_frequencies(rope_spec(config.to_dict(), head_dim=64), max_len=12000)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=5e-7)
    assert our_factor == pytest.approx(factor)


@pytest.mark.parametrize("length", [100, 5000])
def test_longrope_equals_transformers_on_both_sides_of_the_original_length(length):
    rope = {"rope_type": "longrope", "short_factor": [1.5] * 32, "long_factor": [float(i + 2) for i in range(32)]}
    config = _config(rope, original_max_position_embeddings=4096)
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
    ours, our_factor = inverse_frequencies(rope_spec(config.to_dict(), head_dim=64), max_len=length)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=5e-7)
    assert our_factor == pytest.approx(factor)
    assert our_factor > 1.0


def test_tables_equal_transformers_at_far_positions():
    config = _config({"rope_type": "default"})
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.arange(8192)[None])
    our_cos, our_sin = rope_tables(rope_spec(config.to_dict(), head_dim=64), max_len=8192)
    assert our_cos.shape == (8192, 32)
    assert our_cos.dtype == np.float32
    np.testing.assert_allclose(our_cos, cos[0, :, :32].numpy(), atol=1e-3)
    np.testing.assert_allclose(our_sin, sin[0, :, :32].numpy(), atol=1e-3)
    np.testing.assert_allclose(our_cos[:64], cos[0, :64, :32].numpy(), atol=1e-5)


def test_old_spellings_mean_the_same():
    new = {
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
    }
    old = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500000.0}
    assert rope_spec(old, head_dim=64) == rope_spec(new, head_dim=64)


def test_partial_rotation_turns_part_of_a_head():
    spec = rope_spec({"partial_rotary_factor": 0.5}, head_dim=64)
    assert rope_tables(spec, max_len=3)[0].shape == (3, 16)


def test_lod_07_factors_of_a_gguf_file_equal_llama3_scaling():
    """Llama 3.1 files carry the scaling as one divisor per pair; it must mean what the config's numbers mean."""
    scaled, _ = inverse_frequencies(rope_spec(_config(SCALINGS["llama3"]).to_dict(), head_dim=64), max_len=100)
    plain, _ = inverse_frequencies(rope_spec(_config({"rope_type": "default"}).to_dict(), head_dim=64), max_len=100)
    config = {"rope_theta": 50000.0, "rope_scaling": {"rope_type": "factors", "factors": (plain / scaled).tolist()}}
    divided, _ = inverse_frequencies(rope_spec(config, head_dim=64), max_len=100)
    np.testing.assert_allclose(divided, scaled, rtol=5e-7)
    assert (plain / scaled).max() == pytest.approx(8.0)


@pytest.mark.parametrize("factors", [(), (1.0,) * 7, (0.0,) * 8])
def test_a_wrong_number_of_factors_is_an_error(factors):
    spec = RopeSpec(dim=16, kind="factors", max_position=10, original_max_position=10, factors=factors)
    with pytest.raises(ModelError, match="needs 8 positive factors"):
        inverse_frequencies(spec, max_len=10)
