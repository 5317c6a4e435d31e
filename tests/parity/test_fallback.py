"""Fallback models, computed by transformers' modules over our paged cache, equal transformers alone."""

import functools

import pytest
import torch
import transformers
from parity.driver import Driver
from parity.families import (
    SIZES,
    assert_equals_transformers,
    llama,
    longrope,
    make_prompts,
    one_torch_thread,
    randomise,
    save_model,
)

from mini_vllm.errors import ModelError, UnsupportedModelError, WeightsError
from mini_vllm.models import load_fallback

_NEOX_SIZES = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
_SLIDING = ["sliding_attention", "full_attention"]

FALLBACKS = {
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES, sliding_window=24),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "olmo3": lambda: transformers.Olmo3Config(**SIZES, sliding_window=24, layer_types=_SLIDING),
    "cohere2": lambda: transformers.Cohere2Config(
        **SIZES, sliding_window=24, layer_types=_SLIDING, logit_scale=0.5, tie_word_embeddings=True
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**_NEOX_SIZES),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=16, sliding_window=24, layer_types=_SLIDING, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, head_dim=16, sliding_window=24, query_pre_attn_scalar=24, attn_logit_softcapping=5.0
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    with one_torch_thread():
        yield


@functools.cache
def _reference(name):
    return randomise(FALLBACKS[name]())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Saved once per family."""

    @functools.cache
    def folder(name):
        return save_model(_reference(name), tmp_path_factory.mktemp(name))

    return folder


def _driver(model):
    store = model.kv_store(model.info.kv_shape(num_blocks=64, block_size=16, dtype="f32"))
    return Driver(model.compile(store, max_tokens=1024, max_rows=16, max_logit_rows=16), block_size=16, num_blocks=64)


@pytest.mark.parametrize("chunk", [7, 16, None])
@pytest.mark.parametrize("name", FALLBACKS)
def test_ragged_batch_equals_transformers(name, chunk, folders):
    driver, prompts = _driver(load_fallback(folders(name))), make_prompts((5, 32, 41))
    for prompt, continuation in zip(prompts, driver.generate(prompts, 64 if chunk is None else 6, chunk=chunk)):
        assert_equals_transformers(_reference(name), prompt, continuation)


def test_facts_come_from_the_calls_that_the_layers_make(folders):
    model = load_fallback(folders("olmo3"))
    info = model.info
    assert (info.architecture, info.num_layers, info.num_heads, info.num_kv_heads) == ("Olmo3ForCausalLM", 2, 4, 2)
    assert (info.head_dim, info.hidden_size, info.vocab_size, info.max_position) == (16, 64, 131, 256)
    assert info.windows == (24, 0)
    assert model.num_parameters == sum(parameter.numel() for parameter in _reference("olmo3").parameters())
    assert model.weight_bytes == 4 * model.num_parameters
    assert model.describe()["class"] == "Olmo3ForCausalLM"


def test_half_precision_weights_compute_over_a_half_precision_cache(folders):
    model = load_fallback(folders("starcoder2"), dtype="bfloat16")
    assert model.module.dtype == torch.bfloat16
    (prompt,) = make_prompts((30,))
    (continuation,) = _driver(model).generate([prompt], 4, chunk=16)
    assert len(continuation.token_ids) == 4


def _save(config, folder):
    return save_model(randomise(config), folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: transformers.StableLmConfig(**SIZES), ["stablelm", "attention backends"]),
        (lambda: llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), ["dynamic"]),
        (lambda: transformers.Phi3Config(**SIZES, **longrope(original=64)), ["longrope", "batch"]),
        (lambda: transformers.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1), ["mamba", "recurrent"]),
        (lambda: transformers.BloomConfig(vocab_size=20, hidden_size=16, n_layer=1, n_head=2), ["bloom"]),
        (lambda: transformers.Qwen3NextConfig(num_hidden_layers=1), ["qwen3_next", "recurrent"]),
        (lambda: transformers.BertConfig(), ["bert"]),
        (lambda: transformers.T5Config(), ["t5", "encoder"]),
        (lambda: transformers.Gemma3TextConfig(use_bidirectional_attention=True), ["bidirectional"]),
        (lambda: transformers.Llama4TextConfig(num_hidden_layers=1), ["llama4_text", "chunked_attention"]),
    ],
)
def test_what_would_run_wrongly_is_refused_by_name(config, words, tmp_path):
    """Before any weight is read: these folders hold a config alone."""
    config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        load_fallback(tmp_path)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message


def test_layers_that_share_keys_and_values_unevenly_are_refused(tmp_path):
    config = transformers.DeepseekV2Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=8, q_lora_rank=None, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=2, num_experts_per_tok=1,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="keys and values have different sizes"):
        load_fallback(_save(config, tmp_path))


def test_an_unknown_model_type_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "made_up"}')
    with pytest.raises(UnsupportedModelError, match="made_up"):
        load_fallback(tmp_path)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match="not a folder"):
        load_fallback(tmp_path / "model.gguf")


def test_lod_13_a_missing_tensor_is_named(tmp_path):
    model = randomise(FALLBACKS["olmo2"]())
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "model.norm.weight"}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(WeightsError, match=r"missing keys: model\.norm\.weight"):
        load_fallback(tmp_path)


def test_no_weights_is_an_error(tmp_path):
    FALLBACKS["olmo2"]().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="weights cannot be loaded"):
        load_fallback(tmp_path)


def test_a_model_that_does_more_than_attention_fails_the_probe(tmp_path, monkeypatch):
    """A state carried along the batch shows in no config; the comparison with the model alone finds it."""
    folder = _save(FALLBACKS["olmo2"](), tmp_path)
    modeling = transformers.models.olmo2.modeling_olmo2
    plain = modeling.Olmo2MLP.forward
    monkeypatch.setattr(modeling.Olmo2MLP, "forward", lambda self, x: plain(self, x) + x.cumsum(dim=1))
    with pytest.raises(UnsupportedModelError, match="other logits in paged batches than by itself"):
        load_fallback(folder)
