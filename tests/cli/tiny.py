"""A random Llama small enough to load in a blink, as a Hugging Face folder."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from text.templates import CHATML
from text.vocabularies import SMOLLM, byte_level

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, CONTEXT = 32, 64, 2, 4, 2, 256


def write_model(folder: Path, *, chat_template: bool = True) -> Path:
    """The folder, with config, weights and tokenizer."""
    rng = np.random.default_rng(5)
    tokenizer = byte_level(SMOLLM)
    vocab, head = tokenizer.get_vocab_size(), WIDTH // HEADS

    def weight(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": weight(vocab, WIDTH), "model.norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "self_attn.q_proj.weight": weight(WIDTH, WIDTH),
            prefix + "self_attn.k_proj.weight": weight(KV_HEADS * head, WIDTH),
            prefix + "self_attn.v_proj.weight": weight(KV_HEADS * head, WIDTH),
            prefix + "self_attn.o_proj.weight": weight(WIDTH, WIDTH),
            prefix + "mlp.gate_proj.weight": weight(INNER, WIDTH),
            prefix + "mlp.up_proj.weight": weight(INNER, WIDTH),
            prefix + "mlp.down_proj.weight": weight(WIDTH, INNER),
            prefix + "input_layernorm.weight": np.ones(WIDTH, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    settings |= {"chat_template": CHATML} if chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
