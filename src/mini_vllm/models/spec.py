"""What a model is, before any weight: `ModelInfo` for everybody, `DecoderSpec` for the one GQA decoder.

A family turns its config into a `DecoderSpec`; the decoder reads nothing else. Must not know: weights, op tables.
"""

from dataclasses import dataclass

from mini_vllm.errors import ModelError
from mini_vllm.kernels.table import KVShape
from mini_vllm.layers import RopeSpec
from mini_vllm.models.configuration import FULL, Config, flag, integer, number, rope_spec

# So that a broken config cannot make us allocate before any tensor is compared with it.
MAX_LAYERS = 10_000
MAX_HEAD_DIM = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts of a model that other rooms need: shapes and limits."""

    model_type: str  # "llama", as config.json says
    architecture: str  # "LlamaForCausalLM"
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_position: int  # context length in tokens
    max_position_limit: int  # how far max_model_len may go (more than max_position under dynamic or linear rope)
    windows: tuple[int, ...]  # per layer, in tokens; 0: full attention
    tie_word_embeddings: bool

    @property
    def sliding_window(self) -> int | None:
        """The window that all layers share at least, in tokens; None when a layer sees everything."""
        return max(self.windows) if all(self.windows) else None

    def kv_shape(self, *, num_blocks: int, block_size: int, dtype: str) -> KVShape:
        """The KV store of this model."""
        return KVShape(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer: RMS norm, rotary grouped-query attention, gated MLP. Tuples are per layer."""

    model_type: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    max_position_limit: int
    norm_eps: float
    tie_word_embeddings: bool
    attention_scale: float
    windows: tuple[int, ...]  # tokens; 0: full attention
    ropes: tuple[RopeSpec, ...]
    activation: str = "silu"  # or "gelu_tanh"
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output product
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before the rotation
    post_norms: bool = False  # norms after attention and MLP too, inside the residual branch (Gemma)
    fused_projections: bool = False  # the file holds qkv_proj and gate_up_proj (Phi-3)
    embed_scale: float = 1.0
    norm_offset: float = 0.0  # added to every norm weight (Gemma: 1)
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def info(self) -> ModelInfo:
        """The part that other rooms need."""
        return ModelInfo(
            model_type=self.model_type,
            architecture=self.architecture,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_position=self.max_position,
            max_position_limit=self.max_position_limit,
            windows=self.windows,
            tie_word_embeddings=self.tie_word_embeddings,
        )


def llama_like(
    config: Config, *, head_dim: int | None = None, norm_eps: float = 1e-6, tied: bool = False, theta: float = 1e4
) -> DecoderSpec:
    """The spec of a plain Llama of these sizes; a family replaces what it does otherwise. Keywords: its defaults."""
    num_heads = integer(config, "num_attention_heads")
    num_kv_heads = integer(config, "num_key_value_heads", num_heads)
    num_layers, hidden_size = integer(config, "num_hidden_layers", high=MAX_LAYERS), integer(config, "hidden_size")
    head_dim = integer(config, "head_dim", head_dim or hidden_size // num_heads, high=MAX_HEAD_DIM)
    if num_heads % num_kv_heads:
        raise ModelError(f"config.json has {num_heads} attention heads for {num_kv_heads} K/V heads; not a multiple")
    rope = rope_spec(config, head_dim=head_dim, layer_type=FULL, theta=theta)
    max_position, limit = context_length(rope)
    return DecoderSpec(
        model_type=str(config["model_type"]),
        architecture=architecture_name(config),
        vocab_size=integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=max_position,
        max_position_limit=limit,
        norm_eps=number(config, "rms_norm_eps", norm_eps),
        tie_word_embeddings=flag(config, "tie_word_embeddings", default=tied),
        attention_scale=head_dim**-0.5,
        windows=(0,) * num_layers,
        ropes=(rope,) * num_layers,
    )


def architecture_name(config: Config) -> str:
    """`architectures[0]`, or the model type where a config names none."""
    names = config.get("architectures")
    return str(names[0] if isinstance(names, list) and names else config["model_type"])


def context_length(rope: RopeSpec) -> tuple[int, int]:
    """(context length, furthest permitted length) in tokens.

    YaRN configs keep either the original or the stretched length in max_position_embeddings, so the larger counts.
    Linear and dynamic scaling keep the original and may be stretched by their factor when the user asks.
    """
    stretched = int(rope.factor * rope.original_max_position)
    if rope.kind == "yarn":
        longest = max(rope.max_position, stretched)
        return longest, longest
    if rope.kind in ("linear", "dynamic"):
        return rope.max_position, max(rope.max_position, int(rope.factor * rope.max_position))
    return rope.max_position, rope.max_position
