"""`mini-vllm inspect`: what a model is and needs. Opens the files, reads headers, loads no weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mini_vllm.cli.arguments import WORDS_HELP, no_more, take_model
from mini_vllm.cli.options import ENGINE, Options, with_options
from mini_vllm.cli.render import show_bytes, table, write_json
from mini_vllm.cli.session import cache_mode, fetch
from mini_vllm.config import EngineConfig
from mini_vllm.errors import MissingDependencyError, UnsupportedModelError, UserError

if TYPE_CHECKING:
    from mini_vllm.kernels.table import Device
    from mini_vllm.models import ModelInfo
    from mini_vllm.weights import Checkpoint

_NARROW = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@with_options(*ENGINE)
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]", hidden=True, help=WORDS_HELP)] = None,
    as_json: Annotated[
        bool, typer.Option("--json/--text", envvar="MINI_VLLM_JSON", help="print one JSON object")
    ] = False,
    *,
    options: Options,
) -> None:
    """Show what a model is, what it needs and what fits, without loading it.

    MODEL may also be given with --model. Settings such as --dtype and --block-size are taken into account.
    """
    no_more(take_model(list(words or []), options))
    config = options.engine_config()
    facts = inspect_model(config)
    if as_json:
        write_json(facts, indent=2)
    else:
        table({_label(name): _in_words(name, value, config) for name, value in facts.items()}, title=facts["model"])


def inspect_model(config: EngineConfig) -> dict[str, Any]:
    """Facts of a model by name; sizes in bytes, lengths in tokens."""
    from mini_vllm import weights

    path = fetch(config)
    checkpoint = weights.open_checkpoint(path)
    try:
        device, kernels = _device(config, checkpoint)
        info = _native_info(checkpoint)
        tensors = Tensors(checkpoint)
        weight_bytes = tensors.bytes_in_memory(config.model.dtype, device)
        head_bytes = _head_bytes(config, checkpoint, device)
        weights_there = _Weights(tensors.main_format, (weight_bytes or 0) + head_bytes)
        return {
            "model": config.model.model,
            "path": path,
            "format": "GGUF" if checkpoint.layout == "gguf" else "safetensors",
            **(_architecture(info) if info is not None else _foreign_architecture(checkpoint.config)),
            "parameters": tensors.num_parameters,
            "dtype": tensors.formats,
            "weights_in_file": tensors.num_bytes,
            "weights_in_memory": weight_bytes,
            **({"greedy_head_copy": head_bytes} if head_bytes else {}),
            **_tokenizer(config, checkpoint),
            "sampling_defaults": _sampling(checkpoint.generation_config),
            **({} if info is None else _memory(config, info, device, weights_there)),
            "cache_mode": cache_mode(config),
            "kernels": kernels,
        }
    finally:
        checkpoint.close()


class Tensors:
    """Counts over a checkpoint's tensors, from their headers."""

    def __init__(self, checkpoint: "Checkpoint") -> None:
        from mini_vllm.kernels.tensors import FORMATS

        self._sizes: list[tuple[str, int, int]] = []  # format, elements, dimensions
        counts: dict[str, int] = {}
        for name in checkpoint.names():
            tensor = checkpoint.get(name)
            self._sizes.append((tensor.format, tensor.num_elements, len(tensor.shape)))
            counts[tensor.format] = counts.get(tensor.format, 0) + tensor.num_elements
        self._blocks = FORMATS
        self.num_parameters = sum(counts.values())
        self.main_format = max(counts, key=lambda name: counts[name])
        self.formats = ", ".join(sorted(counts, key=lambda name: -counts[name]))
        self.num_bytes = sum(self._bytes(form, count) for form, count, _ in self._sizes)

    def bytes_in_memory(self, dtype: str, device: "Device | None") -> int | None:
        """What the weights take once loaded; None where nothing here can load them."""
        if device is None:
            return None
        total = 0
        for form, count, dimensions in self._sizes:
            wanted = _NARROW.get(dtype, form)
            kept = dimensions > 1 and wanted in device.weight_formats
            total += self._bytes(wanted if kept else "f32", count)
        return total

    def _bytes(self, form: str, count: int) -> int:
        elements, size = self._blocks[form]
        return count // elements * size


@dataclass(frozen=True, slots=True)
class _Weights:
    """How they lie in memory, what greedy steps keep of the head included."""

    format: str
    num_bytes: int


def _native_info(checkpoint: "Checkpoint") -> "ModelInfo | None":
    """None: a model that only transformers' own modules run. Other unsupported models raise."""
    from mini_vllm import models

    try:
        return models.model_info(checkpoint.config)
    except UnsupportedModelError as error:
        if error.code != models.NOT_NATIVE:
            raise
        return None


def _head_bytes(config: EngineConfig, checkpoint: "Checkpoint", device: "Device | None") -> int:
    """What greedy steps will keep of the output head beside the weights."""
    from mini_vllm import models

    if device is None or _native_info(checkpoint) is None:
        return 0
    return models.greedy_head_bytes(checkpoint, device, dtype=config.model.dtype)


def _foreign_architecture(config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says in its own words."""
    names = {
        "layers": ("num_hidden_layers", "n_layer", "num_layers"),
        "hidden_size": ("hidden_size", "n_embd", "d_model"),
        "attention_heads": ("num_attention_heads", "n_head", "num_heads"),
        "kv_heads": ("num_key_value_heads", "num_kv_heads"),
        "vocabulary": ("vocab_size",),
        "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
    }
    facts = {"architecture": ", ".join(config.get("architectures") or [str(config.get("model_type"))])}
    for name, keys in names.items():
        found = next((config[key] for key in keys if config.get(key) is not None), None)
        if found is not None:
            facts[name] = found
    return facts


def _architecture(info: "ModelInfo") -> dict[str, Any]:
    facts: dict[str, Any] = {
        "architecture": info.architecture,
        "layers": info.num_layers,
        "hidden_size": info.hidden_size,
        "attention_heads": info.num_heads,
        "kv_heads": info.num_kv_heads,
        "head_dim": info.head_dim,
        "vocabulary": info.vocab_size,
        "context": info.max_position,
    }
    windows = sorted({window for window in info.windows if window})
    if windows:
        windowed = sum(1 for window in info.windows if window)
        facts["sliding_window"] = f"{windows[-1]} tokens in {windowed} of {info.num_layers} layers"
    return facts


def _tokenizer(config: EngineConfig, checkpoint: "Checkpoint") -> dict[str, Any]:
    """Special tokens and template; a model without a usable tokenizer can still be inspected."""
    from mini_vllm.engine.assembly import load_text
    from mini_vllm.text import eos_token_ids

    try:
        tokenizer, template = load_text(config, checkpoint)
    except UserError as error:
        return {"tokenizer": f"cannot be used: {error}"}
    ends = eos_token_ids(checkpoint.config, checkpoint.generation_config, tokenizer, template)
    return {
        "tokenizer": f"{tokenizer.vocab_size} tokens",
        "end_tokens": ", ".join(f"{token_id} {tokenizer.piece(token_id)}" for token_id in ends) or "none",
        "chat_template": ", ".join(sorted(template.sources)) or "none",
    }


def _sampling(generation_config: dict[str, Any]) -> str:
    """What the model's generation config sets where a request does not."""
    from mini_vllm.engine.assembly import sampling_defaults

    found = sampling_defaults(generation_config)
    return ", ".join(f"{name} {value}" for name, value in found.items()) or "none"


def _device(config: EngineConfig, checkpoint: "Checkpoint") -> "tuple[Device | None, str]":
    from mini_vllm.kernels.registry import get_device
    from mini_vllm.runner.loading import choose_executor

    executor = "?"
    try:
        executor = choose_executor(config.model, checkpoint)
        if executor == "hf":
            return None, "hf (transformers' own modules)"
        chosen = "cpu" if config.model.device == "auto" else config.model.device
        device = get_device(executor, threads=config.model.threads, torch_device=chosen, isa=config.model.isa)
    except MissingDependencyError as error:
        return None, f"none: {error}"
    return device, ", ".join(f"{name} {value}" for name, value in device.describe().items())


def _memory(config: EngineConfig, info: "ModelInfo", device: "Device | None", weights: _Weights) -> dict[str, Any]:
    """KV bytes, and how many tokens and whole sequences the cache would hold on this machine, now."""
    from mini_vllm.runner.storage import choose_num_blocks, free_memory, kv_format

    cache = config.cache
    supported = device.store_dtypes if device is not None else frozenset({"f32", "f16", "bf16"})
    dtype = kv_format(cache.kv_cache_dtype, _NARROW.get(config.model.dtype, weights.format), supported)
    shape = info.kv_shape(num_blocks=1, block_size=cache.block_size, dtype=dtype)
    longest = config.model.max_model_len or info.max_position
    facts: dict[str, Any] = {
        "kv_dtype": dtype,
        "kv_bytes_per_token": shape.bytes_per_block // cache.block_size,
        "free_memory": free_memory(),
    }
    try:
        blocks = choose_num_blocks(
            cache,
            shape,
            max_model_len=longest,
            max_num_seqs=config.scheduler.max_num_seqs,
            free_bytes=max(0, facts["free_memory"] - weights.num_bytes),
        )
    except UserError as error:
        return {**facts, "fits": f"no: {error}"}
    tokens = blocks * cache.block_size
    facts["kv_cache"] = blocks * shape.bytes_per_block
    facts["fits"] = (
        f"{tokens} tokens in {blocks} blocks of {cache.block_size}: {tokens // longest} sequences of {longest} tokens"
    )
    return facts


_BYTES = frozenset(
    {"weights_in_file", "weights_in_memory", "greedy_head_copy", "kv_bytes_per_token", "free_memory", "kv_cache"}
)


def _label(name: str) -> str:
    """Of a fact, for people. K and V take memory as sequences come, not at once."""
    return "kv cache, at most" if name == "kv_cache" else name.replace("_", " ")


def _in_words(name: str, value: Any, config: EngineConfig) -> str:
    """A fact for people: sizes with units, and whose a template and sampling defaults are."""
    if value is None:
        return "unknown"
    if name == "chat_template" and value != "none":
        file = config.model.chat_template
        named = "" if value == "default" else f": {value}"
        return f"the model's own{named}" if file is None else f"of {file}"
    if name == "sampling_defaults":
        used = "" if config.model.generation_config else ", not used"
        return "the model sets none" if value == "none" else f"{value} (set by the model{used})"
    if name in _BYTES:
        return show_bytes(value) + (f" ({value})" if value < 10 * 2**20 else "")
    return f"{value:,}" if name == "parameters" else str(value)
