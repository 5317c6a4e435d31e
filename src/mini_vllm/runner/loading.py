"""From a configuration and a checkpoint to an executor: which op table, how much KV cache, one compiled program.

Must not know file formats, requests or the scheduler.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any, Protocol

from mini_vllm import models
from mini_vllm.config import EngineConfig, ModelConfig
from mini_vllm.errors import ConfigError, MissingDependencyError, UnsupportedModelError
from mini_vllm.grammar import GrammarCompiler
from mini_vllm.kernels.native_library import load_library
from mini_vllm.kernels.registry import get_device
from mini_vllm.kernels.table import Device, KVShape, KVStore, Program
from mini_vllm.models import Checkpoint, ModelInfo
from mini_vllm.runner.executor import LocalExecutor
from mini_vllm.runner.model_runner import ModelRunner
from mini_vllm.runner.speculation import DraftModel, check_draft_info, first_layers, make_drafting
from mini_vllm.runner.storage import choose_num_blocks, free_memory, kv_format
from mini_vllm.sampling import make_sampler

MAX_LOGIT_BYTES = 64 * 2**20
"""Bound of the buffer of logits: more output rows than fit are read in slices."""

_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class _Computer(Protocol):
    """A model on its op table, before it has a KV cache."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def store_dtypes(self) -> frozenset[str]: ...

    @property
    def weight_format(self) -> str:
        """Of the products, a key of `kernels.tensors.FORMATS`."""

    @property
    def team(self) -> Any:
        """Native threads for the sampler to share, or None."""

    @property
    def greedy_head_bytes(self) -> int:
        """Memory that greedy steps will take beside the weights, and that K and V must leave."""

    def kv_store(self, shape: KVShape) -> KVStore: ...

    def compile(self, store: KVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int) -> Program: ...

    def describe(self) -> dict[str, str]: ...


def load_executor(
    config: EngineConfig,
    checkpoint: Checkpoint,
    *,
    vocab_size: int | None = None,
    grammars: GrammarCompiler | None = None,
    draft: Checkpoint | None = None,
) -> LocalExecutor:
    """Load the model and make it ready to run steps. Every problem is a `UserError` or `MissingDependencyError`.

    vocab_size: how many ids the tokenizer knows, where the model's vocabulary is padded beyond it; ids from there on
    are never sampled. grammars: what requests with structured outputs need. draft: the second model of --speculative
    draft.
    """
    executor = choose_executor(config.model, checkpoint)
    computer = _load_fallback(config, checkpoint) if executor == "hf" else _load_native(config, checkpoint, executor)
    guessing = _load_draft(config, computer, draft)
    return build_executor(config, computer, vocab_size=vocab_size, grammars=grammars, draft=guessing)


def choose_executor(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """ "native", "torch" or "hf". Auto on a CPU: our library, else torch; hf for models that only transformers has.

    device auto means cpu here: looking for a GPU would import torch, which the native path does without.
    """
    on_cpu = config.device in ("auto", "cpu")
    if config.executor == "native" and not on_cpu:
        raise ConfigError(
            f"executor native runs on the CPU only, but device is {config.device}; use executor torch", param="executor"
        )
    if config.executor != "auto":
        return config.executor
    try:
        models.model_info(checkpoint.config)
    except UnsupportedModelError as error:
        if error.code == models.NOT_NATIVE and checkpoint.layout == "hf" and _has_torch():
            return "hf"
        raise
    if not on_cpu:
        return "torch"
    try:
        load_library()
    except MissingDependencyError:
        if _has_torch():
            return "torch"
        raise
    return "native"


def build_executor(
    config: EngineConfig,
    computer: _Computer,
    *,
    vocab_size: int | None = None,
    grammars: GrammarCompiler | None = None,
    draft: DraftModel | None = None,
) -> LocalExecutor:
    """Give a loaded model its KV cache, program, sampler and rows."""
    info, cache, scheduler = computer.info, config.cache, config.scheduler
    max_model_len = config.model.max_model_len or info.max_position
    shape = info.kv_shape(
        num_blocks=0,
        block_size=cache.block_size,
        dtype=kv_format(cache.kv_cache_dtype, computer.weight_format, computer.store_dtypes),
    )
    free_bytes = max(0, _free_bytes(config.model.device) - computer.greedy_head_bytes)
    num_blocks = choose_num_blocks(
        cache,
        shape,
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        free_bytes=_share_without_draft(free_bytes, shape, draft),
    )
    shape = info.kv_shape(num_blocks=num_blocks, block_size=cache.block_size, dtype=shape.dtype)
    program = computer.compile(
        computer.kv_store(shape),
        max_tokens=scheduler.max_num_batched_tokens,
        max_rows=scheduler.max_num_seqs,
        max_logit_rows=max(1, min(scheduler.max_num_seqs, MAX_LOGIT_BYTES // (4 * info.vocab_size))),
    )
    sampler = make_sampler(limit=min(info.vocab_size, vocab_size or info.vocab_size), team=computer.team)
    runner = ModelRunner(
        program,
        sampler,
        block_size=cache.block_size,
        max_model_len=max_model_len,
        max_tokens=scheduler.max_num_batched_tokens,
        max_rows=scheduler.max_num_seqs,
        grammars=grammars,
    )
    runner.drafting = make_drafting(
        config,
        draft,
        sampler,
        runner.rows,
        num_blocks=num_blocks,
        vocab_size=info.vocab_size,
        max_model_len=max_model_len,
    )
    description = {
        **computer.describe(),
        "sampler": sampler.backend.name,
        "kv_format": shape.dtype,
        "kv_bytes": str(num_blocks * shape.bytes_per_block),
        **({} if runner.drafting is None else {"drafter": config.speculative.speculative}),
    }
    return LocalExecutor(
        runner=runner,
        info=info,
        num_blocks=num_blocks,
        block_size=cache.block_size,
        max_model_len=max_model_len,
        description=description,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpTableModel:
    """A model written over the op table, on its device."""

    loaded: models.LoadedModel
    device: Device
    weight_format: str
    greedy_head_bytes: int

    @property
    def info(self) -> ModelInfo:
        return self.loaded.info

    @property
    def store_dtypes(self) -> frozenset[str]:
        return self.device.store_dtypes

    @property
    def team(self) -> Any:
        return getattr(self.device, "team", None)

    def kv_store(self, shape: KVShape) -> KVStore:
        return self.device.kv_store(shape)

    def compile(self, store: KVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int) -> Program:
        return self.device.compile(
            self.loaded.model, store, max_tokens=max_tokens, max_rows=max_rows, max_logit_rows=max_logit_rows
        )

    def describe(self) -> dict[str, str]:
        return {
            **self.device.describe(),
            "weight_format": self.weight_format,
            "num_parameters": str(self.loaded.num_parameters),
            "weight_bytes": str(self.loaded.weight_bytes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _FallbackModel:
    """A model of transformers' own modules."""

    model: Any  # models.hf.FallbackModel
    weight_format: str
    team: Any = None
    greedy_head_bytes: int = 0

    @property
    def info(self) -> ModelInfo:
        info: ModelInfo = self.model.info
        return info

    @property
    def store_dtypes(self) -> frozenset[str]:
        dtypes: frozenset[str] = self.model.store_dtypes
        return dtypes

    def kv_store(self, shape: KVShape) -> KVStore:
        return self.model.kv_store(shape)

    def compile(self, store: KVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int) -> Program:
        program: Program = self.model.compile(
            store, max_tokens=max_tokens, max_rows=max_rows, max_logit_rows=max_logit_rows
        )
        return program

    def describe(self) -> dict[str, str]:
        return {
            **self.model.describe(),
            "num_parameters": str(self.model.num_parameters),
            "weight_bytes": str(self.model.weight_bytes),
        }


def _load_native(config: EngineConfig, checkpoint: Checkpoint, executor: str) -> _OpTableModel:
    settings = config.model
    info = models.model_info(checkpoint.config)
    torch_device = "cpu" if settings.device == "auto" else settings.device
    device = get_device(executor, threads=settings.threads, torch_device=torch_device, isa=settings.isa)
    loaded = models.load_model(
        checkpoint, device, dtype=settings.dtype, max_model_len=settings.max_model_len or info.max_position
    )
    weight_format = _FORMATS.get(settings.dtype) or _file_format(checkpoint)
    head_bytes = models.greedy_head_bytes(checkpoint, device, dtype=settings.dtype)
    return _OpTableModel(loaded=loaded, device=device, weight_format=weight_format, greedy_head_bytes=head_bytes)


def _load_fallback(config: EngineConfig, checkpoint: Checkpoint) -> _FallbackModel:
    settings = config.model
    device = "cpu" if settings.device == "auto" else settings.device
    model = models.load_fallback(checkpoint.path, device=device, dtype=settings.dtype, threads=settings.threads)
    limit, wanted = model.info.max_position_limit, settings.max_model_len
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"max_model_len is {wanted} but {model.info.architecture} reads at most {limit} tokens; lower it",
            param="max_model_len",
        )
    return _FallbackModel(model=model, weight_format=_FORMATS[model.describe()["compute"]])


def _load_draft(config: EngineConfig, computer: _Computer, checkpoint: Checkpoint | None) -> DraftModel | None:
    """The model that guesses, on the target's device and threads."""
    settings = config.speculative
    if settings.speculative not in ("draft", "self"):
        return None
    if not isinstance(computer, _OpTableModel):
        raise ConfigError(
            f"speculative {settings.speculative} needs a model on our own ops, not transformers' modules; "
            "use ngram or suffix",
            param="speculative",
        )
    max_model_len = config.model.max_model_len or computer.info.max_position
    if settings.speculative == "self":
        loaded, weight_format = first_layers(computer.loaded, settings.draft_layers), computer.weight_format
    else:
        assert checkpoint is not None, "the draft model's checkpoint was not opened"
        check_draft_info(models.model_info(checkpoint.config), max_model_len=max_model_len)
        loaded = models.load_model(checkpoint, computer.device, dtype="auto", max_model_len=max_model_len)
        weight_format = _file_format(checkpoint)
    dtype = kv_format(config.cache.kv_cache_dtype, weight_format, computer.store_dtypes)
    return DraftModel(loaded, computer.device, kv_dtype=dtype)


def _share_without_draft(free_bytes: int, shape: KVShape, draft: DraftModel | None) -> int:
    """What is left for the target's blocks, of which the draft model needs as many."""
    if draft is None:
        return free_bytes
    own, other = shape.bytes_per_block, draft.shape(0, shape.block_size).bytes_per_block
    return free_bytes * own // (own + other)


def _file_format(checkpoint: Checkpoint) -> str:
    """The number format of a layer's product, which stands for the file."""
    for name in sorted(checkpoint.names()):
        if name.endswith((".down_proj.weight", ".c_proj.weight")):
            return checkpoint.get(name).format
    return "f32"


def _free_bytes(device: str) -> int:
    if device not in ("auto", "cpu"):
        from mini_vllm.kernels.torch_memory import free_bytes

        on_device = free_bytes(device)
        if on_device is not None:
            return on_device
    return free_memory()


def _has_torch() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
