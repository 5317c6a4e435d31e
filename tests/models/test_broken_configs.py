"""Whatever a config.json holds, the answer is a model's facts or one of our errors."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from models.checkpoints import llama_config

from mini_vllm.errors import ModelError
from mini_vllm.layers import rope_tables
from mini_vllm.models import model_info, native_architectures
from mini_vllm.models.registry import model_spec

_NUMBERS = st.one_of(st.integers(-3, 2**40), st.floats(allow_nan=True), st.booleans(), st.none())
_ROPE_KEYS = [
    *("factor", "rope_theta", "short_factor", "factors", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor", "partial_rotary_factor", "mscale", "mscale_all_dim"),
]
_VALUES = st.one_of(
    _NUMBERS,
    st.text(max_size=5),
    st.lists(_NUMBERS, max_size=9),
    st.sampled_from([["sliding_attention", "full_attention"], {"sliding_attention": {"rope_theta": 0}}, "silu"]),
    st.fixed_dictionaries(
        {"rope_type": st.sampled_from(["yarn", "llama3", "longrope", "linear", "dynamic", "factors", 3])},
        optional={key: st.one_of(_NUMBERS, st.lists(_NUMBERS, max_size=4)) for key in _ROPE_KEYS},
    ),
)
_KEYS = st.sampled_from(
    [
        *llama_config(),
        *("rope_scaling", "rope_parameters", "rope_theta", "layer_types", "sliding_window", "head_dim"),
        *("hidden_act", "hidden_activation", "quantization_config", "use_sliding_window", "max_window_layers"),
        *("query_pre_attn_scalar", "final_logit_softcapping", "sliding_window_pattern", "rms_norm_eps"),
        *("original_max_position_embeddings", "n_embd", "n_head", "n_layer", "n_positions", "vision_config"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*native_architectures(), 7, None]), st.dictionaries(_KEYS, _VALUES, max_size=3))
def test_every_config_is_understood_or_refused(model_type, changes):
    config = llama_config(n_embd=8, n_head=2, n_layer=2) | {"model_type": model_type} | changes
    with contextlib.suppress(ModelError):
        assert model_info(config).num_layers > 0


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["rope_scaling", "rope_theta", "head_dim"]), _VALUES, max_size=3))
def test_every_rope_gives_numbers_or_an_error(changes):
    with contextlib.suppress(ModelError):
        cos, sin = rope_tables(model_spec(llama_config() | changes).ropes[0], max_len=8)
        assert abs(cos).max() < 1e30
        assert abs(sin).max() < 1e30
