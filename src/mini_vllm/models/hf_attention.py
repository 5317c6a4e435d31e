"""The attention function that transformers' modules call in fallback models: paged, ragged, one call per layer.

The step travels as the keyword `mini_vllm_step` through the model's own `**kwargs`; there is no global. Every rule that
a model passes is honoured or refused by name. Must not know: loading, scheduling.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from mini_vllm.errors import UnsupportedModelError
from mini_vllm.kernels.table import AttentionSpec
from mini_vllm.kernels.torch_ops import StepTensors, TorchKVStore, attend_step

ATTENTION_NAME = "mini_vllm_paged"
STEP_KEYWORD = "mini_vllm_step"

# What models pass along that changes nothing here: bookkeeping, and positions that the rotation has used already.
_WITHOUT_EFFECT = frozenset(
    {"cache_position", "dropout", "is_causal", "output_attentions", "output_hidden_states", "position_ids", "use_cache"}
)


class Step(Protocol):
    """What takes a layer's queries, keys and values."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spec: AttentionSpec,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """query [T, heads, D], key and value [T, kv heads, D] of one layer → [T, heads, D]."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """One step over a paged store."""

    store: TorchKVStore
    tensors: StepTensors

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spec: AttentionSpec,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Write k and v, then attend to all that each sequence has stored."""
        self.store.write(spec.layer, self.tensors.slots, key, value)
        return attend_step(query.float(), self.store, self.tensors, spec, sinks).to(query.dtype)


@dataclass(slots=True)
class SurveyStep:
    """Computes nothing and notes each layer's rules, so that a store of the right shape can be made."""

    specs: list[AttentionSpec] = field(default_factory=list)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spec: AttentionSpec,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Note the rules."""
        if value.shape != key.shape:
            raise UnsupportedModelError("this model's keys and values have different sizes; run it with transformers")
        self.specs.append(spec)
        return torch.zeros_like(query)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **rules: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface. query [1, heads, T, D], key and value [1, kv heads, T, D] → [1, T, heads, D].

    The batch is one row of T tokens of several sequences laid end to end, as in `StepInputs`.
    """
    step: Step | None = rules.pop(STEP_KEYWORD, None)
    name = type(module).__name__
    if step is None:
        raise UnsupportedModelError(f"{name} does not pass keywords on to its attention; run it with transformers")
    sinks = rules.pop("s_aux", None)
    spec = _spec(module, query, key, rules)
    _refuse_the_rest(name, module, attention_mask, rules)
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
    return step.attend(q, k, v, spec, sinks)[None], None


def _spec(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, rules: dict[str, Any]) -> AttentionSpec:
    """Takes the rules it understands out of `rules`."""
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it is; run it with transformers")
    scaling = rules.pop("scaling", None)
    return AttentionSpec(
        layer=layer,
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
        window=int(rules.pop("sliding_window", None) or 0),
        softcap=float(rules.pop("softcap", None) or 0.0),
    )


def _refuse_the_rest(
    name: str, module: torch.nn.Module, attention_mask: torch.Tensor | None, rules: dict[str, Any]
) -> None:
    if attention_mask is not None:
        raise UnsupportedModelError(f"{name} computes an attention mask of its own; run it with transformers")
    if rules.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModelError(f"{name} is not causal, and this engine runs causal models; try transformers")
    unknown = [key for key, given in rules.items() if key not in _WITHOUT_EFFECT and given is not None]
    if unknown:
        raise UnsupportedModelError(
            f"{name} passes {', '.join(sorted(unknown))} to its attention, which this engine cannot honour; "
            "run it with transformers"
        )


AttentionInterface.register(ATTENTION_NAME, paged_attention)
