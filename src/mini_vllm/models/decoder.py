"""The grouped-query decoder of Llama, Mistral, Qwen, Gemma and Phi-3, written once over the op table.

    x = embed(ids)
    for each layer:  x = x + o(attention(rope(qkv(norm(x)))));  x = x + down(act(gate(norm(x))) * up(norm(x)))
    logits = head(norm(x))

Must not know: how any op is computed, where weights come from, what a batch or a cache is.
"""

from dataclasses import dataclass

from mini_vllm.kernels.table import AttentionSpec, ForwardContext, OpTable, Tensor, Weight
from mini_vllm.models.source import WeightSource
from mini_vllm.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """The weights and rules of one layer. None: this family has no such part."""

    attention: AttentionSpec
    rope: Weight
    attention_norm: Weight
    qkv: Weight
    q_norm: Weight | None
    k_norm: Weight | None
    output: Weight
    attention_post_norm: Weight | None
    mlp_norm: Weight
    gate_up: Weight
    down: Weight
    mlp_post_norm: Weight | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A `kernels.table.Model`."""

    spec: DecoderSpec
    embedding: Weight
    layers: tuple[DecoderLayer, ...]
    norm: Weight
    head: Weight  # the embedding itself when tied

    def hidden(self, ops: OpTable, ctx: ForwardContext) -> Tensor:
        """See `Model.hidden`."""
        spec = self.spec
        x = ops.embed(ctx.token_ids, self.embedding, scale=spec.embed_scale)  # [T, H]
        for layer in self.layers:
            branch = attention(ops, ctx, spec, layer, ops.rms_norm(x, layer.attention_norm, spec.norm_eps))
            x = ops.add(x, post_norm(ops, spec, layer.attention_post_norm, branch))
            branch = mlp(ops, spec, layer, ops.rms_norm(x, layer.mlp_norm, spec.norm_eps))
            x = ops.add(x, post_norm(ops, spec, layer.mlp_post_norm, branch))
        return ops.rms_norm(ops.take_rows(x, ctx.logit_rows), self.norm, spec.norm_eps)  # [L, H]

    def logits(self, ops: OpTable, hidden: Tensor) -> Tensor:
        """See `Model.logits`."""
        return ops.logits(hidden, self.head, self.spec.logit_softcap)  # [L, V]


def attention(ops: OpTable, ctx: ForwardContext, spec: DecoderSpec, layer: DecoderLayer, x: Tensor) -> Tensor:
    """Attention of x [T, H] over its sequences' history, K and V of x included. [T, H]"""
    qkv = ops.linear(x, layer.qkv)  # [T, (heads + 2 kv heads) D]
    if spec.qk_norm:
        qkv = ops.qk_norm(qkv, layer.q_norm, layer.k_norm, spec.norm_eps, layer.attention)
    q = ops.rope_store(qkv, layer.rope, ctx.positions, layer.attention)  # [T, heads D]
    return ops.linear(ops.attend(q, layer.attention), layer.output)


def mlp(ops: OpTable, spec: DecoderSpec, layer: DecoderLayer, x: Tensor) -> Tensor:
    """The gated feed-forward network. [T, H]"""
    gate_up = ops.linear(x, layer.gate_up)  # [T, 2 I]
    inner = ops.silu_mul(gate_up) if spec.activation == "silu" else ops.gelu_mul(gate_up)
    return ops.linear(inner, layer.down)


def post_norm(ops: OpTable, spec: DecoderSpec, weight: Weight | None, x: Tensor) -> Tensor:
    """Gemma's norm at the end of a residual branch; nothing elsewhere."""
    return ops.rms_norm(x, weight, spec.norm_eps) if spec.post_norms else x


def build(spec: DecoderSpec, source: WeightSource, *, max_model_len: int) -> Decoder:
    """Make the model's weights, layer by layer; nothing keeps a second copy."""
    ropes = {rope: source.rope(rope, max_model_len) for rope in dict.fromkeys(spec.ropes)}
    embedding = source.embedding("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    layers = tuple(_build_layer(spec, source, i, ropes[spec.ropes[i]]) for i in range(spec.num_layers))
    norm = source.vector("model.norm.weight", spec.hidden_size, spec.norm_offset)
    head = embedding
    if not (spec.tie_word_embeddings and source.same("lm_head.weight", "model.embed_tokens.weight")):
        head = source.linear(["lm_head"], [spec.vocab_size], spec.hidden_size)
    return Decoder(spec=spec, embedding=embedding, layers=layers, norm=norm, head=head)


def _build_layer(spec: DecoderSpec, source: WeightSource, index: int, rope: Weight) -> DecoderLayer:
    prefix = f"model.layers.{index}"
    names = _NORMS_FOUR if spec.post_norms else _NORMS_TWO

    def norm(part: str) -> Weight | None:
        name = names.get(part)
        return source.vector(f"{prefix}.{name}.weight", spec.hidden_size, spec.norm_offset) if name else None

    def head_norm(part: str) -> Weight | None:
        name = f"{prefix}.self_attn.{part}.weight"
        return source.vector(name, spec.head_dim, spec.norm_offset) if spec.qk_norm else None

    width = spec.num_heads * spec.head_dim
    return DecoderLayer(
        attention=_attention_spec(spec, index),
        rope=rope,
        attention_norm=norm("attention"),
        qkv=_qkv(spec, source, f"{prefix}.self_attn"),
        q_norm=head_norm("q_norm"),
        k_norm=head_norm("k_norm"),
        output=source.linear([f"{prefix}.self_attn.o_proj"], [spec.hidden_size], width, bias=spec.output_bias),
        attention_post_norm=norm("attention_post"),
        mlp_norm=norm("mlp"),
        gate_up=_gate_up(spec, source, f"{prefix}.mlp"),
        down=source.linear([f"{prefix}.mlp.down_proj"], [spec.hidden_size], spec.intermediate_size, bias=spec.mlp_bias),
        mlp_post_norm=norm("mlp_post"),
    )


# post_attention_layernorm precedes the MLP in Llama and closes the attention branch in Gemma.
_NORMS_TWO = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}
_NORMS_FOUR = {
    "attention": "input_layernorm",
    "attention_post": "post_attention_layernorm",
    "mlp": "pre_feedforward_layernorm",
    "mlp_post": "post_feedforward_layernorm",
}


def _attention_spec(spec: DecoderSpec, index: int) -> AttentionSpec:
    return AttentionSpec(
        layer=index,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.attention_scale,
        window=spec.windows[index],
        softcap=spec.attention_softcap,
    )


def _qkv(spec: DecoderSpec, source: WeightSource, prefix: str) -> Weight:
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    if spec.fused_projections:
        return source.linear([f"{prefix}.qkv_proj"], [q + 2 * kv], spec.hidden_size, bias=spec.qkv_bias)
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    return source.linear(names, [q, kv, kv], spec.hidden_size, bias=spec.qkv_bias)


def _gate_up(spec: DecoderSpec, source: WeightSource, prefix: str) -> Weight:
    inner = spec.intermediate_size
    if spec.fused_projections:
        return source.linear([f"{prefix}.gate_up_proj"], [2 * inner], spec.hidden_size, bias=spec.mlp_bias)
    names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    return source.linear(names, [inner, inner], spec.hidden_size, bias=spec.mlp_bias)
