"""GPT-2 (Radford et al., 2019) over the op table: learned positions, layer norms before each branch, a gelu MLP.

    x = wte(ids) + wpe(positions)
    for each layer:  x = x + proj(attention(qkv(ln_1(x))));  x = x + proj(gelu(fc(ln_2(x))))
    logits = head(ln_f(x))

Must not know: how any op is computed, where weights come from.
"""

from dataclasses import dataclass

from mini_vllm.errors import ModelError, UnsupportedModelError
from mini_vllm.kernels.table import AttentionSpec, ForwardContext, OpTable, Tensor, Weight
from mini_vllm.models.configuration import Config, activation, flag, integer, number
from mini_vllm.models.source import WeightSource
from mini_vllm.models.spec import MAX_LAYERS, ModelInfo, architecture_name

# Three spellings of the tanh form; "gelu" (erf) is another function.
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Spec:
    """Sizes and rules."""

    info: ModelInfo
    inner_size: int
    norm_eps: float
    attention_scales: tuple[float, ...]  # per layer


def spec(config: Config) -> GPT2Spec:
    """From a `GPT2Config`."""
    activation(config, "activation_function", "gelu_new", _TANH_GELUS)
    if flag(config, "add_cross_attention"):
        raise UnsupportedModelError("this GPT-2 has cross-attention, so it needs an encoder; run it with transformers")
    hidden, heads = integer(config, "n_embd"), integer(config, "n_head")
    layers = integer(config, "n_layer", high=MAX_LAYERS)
    if hidden % heads:
        raise ModelError(f"config.json has n_embd = {hidden}, which {heads} heads cannot share")
    scale = (hidden // heads) ** -0.5 if flag(config, "scale_attn_weights", default=True) else 1.0
    by_layer = flag(config, "scale_attn_by_inverse_layer_idx")
    positions = integer(config, "n_positions", 1024)
    return GPT2Spec(
        info=ModelInfo(
            model_type=str(config["model_type"]),
            architecture=architecture_name(config),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            hidden_size=hidden,
            vocab_size=integer(config, "vocab_size", 50257),
            max_position=positions,
            max_position_limit=positions,
            windows=(0,) * layers,
            tie_word_embeddings=flag(config, "tie_word_embeddings", default=True),
        ),
        inner_size=integer(config, "n_inner", 4 * hidden),
        norm_eps=number(config, "layer_norm_epsilon", 1e-5),
        attention_scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(layers)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """Weight and bias."""

    weight: Weight
    bias: Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Layer:
    """The weights of one block."""

    attention: AttentionSpec
    attention_norm: LayerNorm
    qkv: Weight
    output: Weight
    mlp_norm: LayerNorm
    up: Weight
    down: Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2:
    """A `kernels.table.Model`."""

    norm_eps: float
    embedding: Weight
    positions: Weight
    layers: tuple[GPT2Layer, ...]
    norm: LayerNorm
    head: Weight

    def hidden(self, ops: OpTable, ctx: ForwardContext) -> Tensor:
        """See `Model.hidden`."""
        x = ops.add(ops.embed(ctx.token_ids, self.embedding), ops.embed_positions(ctx.positions, self.positions))
        for layer in self.layers:
            qkv = ops.linear(self._normed(ops, layer.attention_norm, x), layer.qkv)  # [T, 3 H]
            q = ops.rope_store(qkv, None, ctx.positions, layer.attention)
            x = ops.add(x, ops.linear(ops.attend(q, layer.attention), layer.output))
            inner = ops.gelu(ops.linear(self._normed(ops, layer.mlp_norm, x), layer.up))
            x = ops.add(x, ops.linear(inner, layer.down))
        return self._normed(ops, self.norm, ops.take_rows(x, ctx.logit_rows))  # [L, H]

    def logits(self, ops: OpTable, hidden: Tensor) -> Tensor:
        """See `Model.logits`."""
        return ops.logits(hidden, self.head)

    def _normed(self, ops: OpTable, norm: LayerNorm, x: Tensor) -> Tensor:
        return ops.layer_norm(x, norm.weight, norm.bias, self.norm_eps)


def build(spec: GPT2Spec, source: WeightSource, *, max_model_len: int) -> GPT2:
    """Make the model's weights, layer by layer."""
    info = spec.info
    embedding = source.embedding("transformer.wte.weight", (info.vocab_size, info.hidden_size))
    head = embedding
    if not (info.tie_word_embeddings and source.same("lm_head.weight", "transformer.wte.weight")):
        head = source.linear(["lm_head"], [info.vocab_size], info.hidden_size)
    return GPT2(
        norm_eps=spec.norm_eps,
        embedding=embedding,
        positions=source.embedding("transformer.wpe.weight", (info.max_position, info.hidden_size)),
        layers=tuple(_build_layer(spec, source, index) for index in range(info.num_layers)),
        norm=_build_norm(source, "transformer.ln_f", info.hidden_size),
        head=head,
    )


def _build_layer(spec: GPT2Spec, source: WeightSource, index: int) -> GPT2Layer:
    info, prefix = spec.info, f"transformer.h.{index}"
    hidden = info.hidden_size
    return GPT2Layer(
        attention=AttentionSpec(
            layer=index,
            num_heads=info.num_heads,
            num_kv_heads=info.num_kv_heads,
            head_dim=info.head_dim,
            scale=spec.attention_scales[index],
        ),
        attention_norm=_build_norm(source, f"{prefix}.ln_1", hidden),
        qkv=source.conv1d(f"{prefix}.attn.c_attn", 3 * hidden, hidden),
        output=source.conv1d(f"{prefix}.attn.c_proj", hidden, hidden),
        mlp_norm=_build_norm(source, f"{prefix}.ln_2", hidden),
        up=source.conv1d(f"{prefix}.mlp.c_fc", spec.inner_size, hidden),
        down=source.conv1d(f"{prefix}.mlp.c_proj", hidden, spec.inner_size),
    )


def _build_norm(source: WeightSource, name: str, size: int) -> LayerNorm:
    return LayerNorm(weight=source.vector(f"{name}.weight", size), bias=source.vector(f"{name}.bias", size))
