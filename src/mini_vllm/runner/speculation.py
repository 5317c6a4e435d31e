"""Makes the drafting that a configuration asks for: who guesses, and for a draft model its own KV store and program.

Must not know plans or requests.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError
from mini_vllm.kernels.table import KVShape
from mini_vllm.models import LoadedModel, ModelInfo
from mini_vllm.runner.drafting import Drafter, Drafting, FromText
from mini_vllm.runner.text_drafters import NgramDrafter, SuffixDrafter

if TYPE_CHECKING:
    from mini_vllm.kernels.table import Device
    from mini_vllm.runner.rows import RowTable
    from mini_vllm.sampling import Sampler

CATCH_UP_TOKENS = 512
"""Rows of one pass of a draft model that reads a prompt."""


class DraftModel:
    """A loaded draft model on the target's device, before it has a KV store."""

    def __init__(self, loaded: LoadedModel, device: "Device", *, kv_dtype: str) -> None:
        self._loaded, self._device, self._kv_dtype = loaded, device, kv_dtype

    @property
    def info(self) -> ModelInfo:
        """Of the draft model."""
        return self._loaded.info

    def shape(self, num_blocks: int, block_size: int) -> KVShape:
        """Of its own K and V."""
        return self.info.kv_shape(num_blocks=num_blocks, block_size=block_size, dtype=self._kv_dtype)

    def drafter(
        self, sampler: "Sampler", rows: "RowTable", *, num_blocks: int, most: int, max_rows: int, vocab_size: int
    ) -> Drafter:
        """Give it its KV store and its program."""
        from mini_vllm.runner.draft_model import ModelDrafter, spare_blocks

        spare = max_rows * spare_blocks(most, rows.block_size)
        store = self._device.kv_store(self.shape(num_blocks + spare, rows.block_size))
        max_tokens = max(CATCH_UP_TOKENS, max_rows)
        program = self._device.compile(
            self._loaded.model, store, max_tokens=max_tokens, max_rows=max_rows, max_logit_rows=max_rows
        )
        return ModelDrafter(
            program, sampler, rows,
            num_blocks=num_blocks, most=most, limits=(max_tokens, max_rows),
            vocab_sizes=(vocab_size, self.info.vocab_size),
        )  # fmt: skip


def first_layers(loaded: LoadedModel, num_layers: int | None) -> LoadedModel:
    """The same model with its first layers only, sharing their weights. Default: half of them."""
    info, model = loaded.info, loaded.model
    count = num_layers or max(1, info.num_layers // 2)
    if count >= info.num_layers:
        raise ConfigError(
            f"draft_layers is {count}, but the model has {info.num_layers} layers; fewer must guess",
            param="draft_layers",
        )
    shorter: Any = model
    part = replace(shorter, layers=shorter.layers[:count])
    return replace(loaded, model=part, info=replace(info, num_layers=count, windows=info.windows[:count]))


def check_draft_info(draft: ModelInfo, *, max_model_len: int) -> None:
    """Refuse a draft model that cannot follow the target's sequences to their end."""
    if draft.max_position_limit < max_model_len:
        raise ConfigError(
            f"the draft model reads {draft.max_position_limit} tokens, but max_model_len is {max_model_len}; "
            "lower --max-model-len or take another draft model",
            param="draft_model",
        )


def make_drafting(
    config: EngineConfig,
    draft: DraftModel | None,
    sampler: "Sampler",
    rows: "RowTable",
    *,
    num_blocks: int,
    vocab_size: int,
    max_model_len: int,
) -> Drafting | None:
    """None when nobody is to guess."""
    settings = config.speculative
    drafter: Drafter
    if settings.speculative == "off":
        return None
    if settings.speculative == "ngram":
        drafter = FromText(NgramDrafter())
    elif settings.speculative == "suffix":
        drafter = FromText(SuffixDrafter())
    else:
        assert draft is not None, "a draft model was asked for and not loaded"
        drafter = draft.drafter(
            sampler,
            rows,
            num_blocks=num_blocks,
            most=settings.gamma,
            max_rows=config.scheduler.max_num_seqs,
            vocab_size=vocab_size,
        )
    return Drafting(drafter, most=settings.gamma, max_model_len=max_model_len)
