"""What a config says about a model, and which models are refused, by name and with what would run them."""

import pytest
from models.checkpoints import llama_config

from mini_vllm.errors import ModelError, UnsupportedModelError
from mini_vllm.models import NOT_NATIVE, model_info


def test_info_of_a_llama():
    info = model_info(llama_config(hidden_size=64, head_dim=24))
    assert (info.model_type, info.architecture) == ("llama", "LlamaForCausalLM")
    assert (info.num_layers, info.num_heads, info.num_kv_heads, info.head_dim) == (2, 4, 2, 24)
    assert (info.hidden_size, info.vocab_size, info.max_position) == (64, 50, 64)
    assert (info.windows, info.sliding_window) == ((0, 0), None)
    shape = info.kv_shape(num_blocks=3, block_size=16, dtype="f16")
    assert shape.bytes_per_block == 2 * 2 * 2 * 24 * 16 * 2


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("mistral", {"sliding_window": 24}, (24, 24)),
        ("mistral", {"sliding_window": None}, (0, 0)),
        ("mistral", {"sliding_window": 24, "layer_types": ["full_attention", "sliding_attention"]}, (0, 24)),
        ("qwen2", {"sliding_window": 24}, (0, 0)),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, (0, 24)),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, (24, 24)),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True}, (0, 0)),
        ("gemma2", {}, (4096, 0)),
        ("gemma3_text", {"sliding_window": 24, "sliding_window_pattern": 2}, (24, 0)),
        ("phi3", {"sliding_window": 24}, (24, 24)),
    ],
)
def test_windows_per_layer(model_type, changes, windows):
    assert model_info(llama_config(model_type=model_type, **changes)).windows == windows


@pytest.mark.parametrize(
    ("scaling", "context", "limit"),
    [
        (None, 64, 64),
        ({"rope_type": "yarn", "factor": 4.0}, 256, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64, 64),
        ({"rope_type": "linear", "factor": 4.0}, 64, 256),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}, 64, 64),
    ],
)
def test_context_length_under_scaling(scaling, context, limit):
    info = model_info(llama_config(rope_scaling=scaling))
    assert (info.max_position, info.max_position_limit) == (context, limit)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba2"}, ["mamba2", "recurrent", "llama.cpp"]),
        ({"model_type": "rwkv"}, ["rwkv", "recurrent"]),
        ({"model_type": "jamba"}, ["jamba", "vLLM"]),
        ({"model_type": "lfm2"}, ["lfm2", "convolutional"]),
        (llama_config(quantization_config={"quant_method": "gptq", "bits": 4}), ["gptq", "GGUF", "vLLM"]),
        (llama_config(quantization_config={"quant_method": "awq"}), ["awq"]),
        (llama_config(quantization_config={"quant_method": "fp8"}), ["fp8"]),
        ({"peft_type": "LORA", "base_model_name_or_path": "base/model"}, ["LORA", "base/model", "merge_and_unload"]),
        ({"model_type": "llava", "vision_config": {}}, ["llava", "images", "transformers"]),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": {}}, ["gemma3", "images"]),
        ({"model_type": "t5", "is_encoder_decoder": True}, ["t5", "encoder"]),
        (llama_config(hidden_act="relu2"), ["hidden_act", "relu2", "--executor hf"]),
        (llama_config(rope_scaling={"rope_type": "mrope"}), ["mrope"]),
        (llama_config(model_type="mistral", layer_types=["chunked_attention"] * 2), ["chunked_attention"]),
        (llama_config(model_type="gemma3_text", use_bidirectional_attention=True), ["bidirectional"]),
        ({"model_type": "gpt2", "add_cross_attention": True, "n_embd": 8, "n_head": 2, "n_layer": 1}, ["cross"]),
    ],
)
def test_what_cannot_run_is_refused_by_name(config, words):
    with pytest.raises(UnsupportedModelError) as caught:
        model_info(config)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert caught.value.code != NOT_NATIVE


def test_an_unknown_architecture_points_to_the_fallback():
    with pytest.raises(UnsupportedModelError, match=r"'olmo2' has no native implementation.*--executor hf") as caught:
        model_info(llama_config(model_type="olmo2"))
    assert caught.value.code == NOT_NATIVE


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "model_type"),
        ({"model_type": 3}, "model_type"),
        (llama_config(num_hidden_layers=0), "num_hidden_layers = 0"),
        (llama_config(hidden_size="big"), "hidden_size = 'big'"),
        (llama_config(head_dim=2**30), "head_dim = 1073741824"),
        (llama_config(num_hidden_layers=2**30), "from 1 to 10000"),
        (llama_config(vocab_size=None), "vocab_size = None"),
        (llama_config(num_key_value_heads=3), "not a multiple"),
        (llama_config(rms_norm_eps=float("nan")), "rms_norm_eps = nan"),
        (
            llama_config(model_type="qwen2", use_sliding_window=True, layer_types=["full_attention"]),
            "list a type for each of 2 layers",
        ),
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3, "n_layer": 1}, "3 heads cannot share"),
    ],
)
def test_a_broken_config_names_the_key(config, words):
    with pytest.raises(ModelError, match=words):
        model_info(config)


def test_phi3_calls_longrope_by_its_first_names():
    scaling = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    info = model_info(llama_config(model_type="phi3", rope_scaling=scaling, max_position_embeddings=131072))
    assert info.max_position == 131072
