"""The fallback: any other causal LM of transformers, its own modules computing over our paged KV cache.

A model is accepted if its class supports attention backends, all its layers are full or sliding attention of one shape,
it keeps no other state, and its rotation does not depend on the batch. What a config does not show, a probe does: two
short sequences, batched and chunked, must give what the model's own eager forward gives. Must not know: scheduling.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers.modeling_outputs import MoeModelOutputWithPast

from mini_vllm.errors import ModelError, UnsupportedModelError, WeightsError
from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.table import AttentionSpec, KVShape
from mini_vllm.kernels.torch_ops import StepTensors, TorchDevice, TorchKVStore, to_numpy
from mini_vllm.models.configuration import FULL, SLIDING
from mini_vllm.models.hf_attention import ATTENTION_NAME, STEP_KEYWORD, PagedStep, SurveyStep
from mini_vllm.models.registry import refuse_impossible
from mini_vllm.models.spec import ModelInfo

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PER_BATCH_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackModel:
    """A transformers model whose attention is ours. Has the same doors as a device and a loaded model together."""

    module: Any  # the …ForCausalLM
    info: ModelInfo
    device: torch.device
    num_parameters: int
    weight_bytes: int
    store_dtypes: frozenset[str] = TorchDevice.store_dtypes

    def kv_store(self, shape: KVShape) -> TorchKVStore:
        """Uninitialised K and V, of `info.kv_shape(…)`."""
        return TorchKVStore.empty(shape, self.device)

    def compile(self, store: TorchKVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int) -> "FallbackProgram":
        """A `kernels.table.Program` over this store."""
        return FallbackProgram(self.module, store, self.device, max_logit_rows)

    def describe(self) -> dict[str, str]:
        """What runs, for `inspect` and `/stats`."""
        return {
            "op_table": "hf",
            "class": type(self.module).__name__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "device": str(self.device),
            "threads": str(torch.get_num_threads()),
            "compute": str(self.module.dtype).removeprefix("torch."),
        }


class FallbackProgram:
    """Runs steps through the module's base model, and its own head over the rows kept."""

    def __init__(self, module: Any, store: TorchKVStore, device: torch.device, max_logit_rows: int) -> None:
        self._module = module
        self._store = store
        self._device = device
        self._max_logit_rows = max_logit_rows
        self._hidden = torch.empty(0)

    @property
    def max_logit_rows(self) -> int:
        """How many rows one call of logits may ask for."""
        return self._max_logit_rows

    def progress(self) -> int:
        """See `Program.progress`: one per layer."""
        return self._store.num_writes

    def run(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """See `Program.run`."""
        with torch.inference_mode():
            step = StepTensors.from_inputs(inputs, self._device)
            hidden = forward(self._module, step.token_ids, step.positions, PagedStep(self._store, step))
            self._hidden = hidden[step.logit_rows]
            return to_numpy(self._hidden)

    def logits(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """See `Program.logits`."""
        assert stop - start <= self._max_logit_rows
        with torch.inference_mode():
            return to_numpy(head_logits(self._module, self._hidden[start:stop]))


def forward(module: Any, token_ids: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
    """Final hidden states [T, H] of T tokens laid end to end."""
    output = module.base_model(
        input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **{STEP_KEYWORD: step}
    )
    hidden: torch.Tensor = output.last_hidden_state[0]
    return hidden


class _Saved(torch.nn.Module):
    """Stands where the base model was and returns hidden states computed earlier."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=self._hidden[None])


def head_logits(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [n, V] of hidden rows [n, H] by the model's own head, with whatever scale or cap it applies.

    A shallow copy of the model gets a base model that returns the rows; weights are shared.
    """
    head = copy.copy(module)
    head._modules = {**module._modules, module.base_model_prefix: _Saved(hidden)}
    ids = torch.zeros((1, hidden.shape[0]), dtype=torch.long, device=hidden.device)
    logits: torch.Tensor = head(input_ids=ids, use_cache=False).logits[0]
    return logits


def load_fallback(
    path: str | Path, *, device: str = "cpu", dtype: str = "auto", threads: int | None = None
) -> FallbackModel:
    """Load a folder with config.json and safetensors; whatever this engine would run wrongly is refused by name.

    dtype: auto (the file's; float32 instead of float16 on a CPU, which is slow at it), float32, bfloat16 or float16.
    """
    path = Path(path)
    torch_device = TorchDevice(device, threads=threads).device
    if not path.is_dir():
        raise UnsupportedModelError(f"{path} is not a folder; the hf executor reads Hugging Face folders only")
    config = _read_config(path)
    model_class = _check_class(config)
    _check_layers(config)
    _check_rope(config)
    module = _load_module(model_class, path, config, dtype=dtype, device=torch_device)
    specs = _survey(module, torch_device)
    _check_windows(config, specs)
    model = FallbackModel(
        module=module,
        info=_info(config, module, specs),
        device=torch_device,
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        weight_bytes=sum(parameter.nbytes for parameter in module.parameters()),
    )
    _probe(model)
    return model


def _read_config(path: Path) -> Any:
    try:
        raw, _ = transformers.PretrainedConfig.get_config_dict(path, local_files_only=True)
        refuse_impossible(raw)
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise UnsupportedModelError(f"{path}: transformers cannot read this model: {first_line}") from error


def _check_class(config: Any) -> Any:
    name = config.model_type
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        raise UnsupportedModelError(
            f"{name!r} is not a causal language model of transformers; run it with transformers"
        )
    model_class: Any = mapping[type(config)]
    if model_class._is_stateful:
        raise UnsupportedModelError(
            f"{name!r} keeps a recurrent state, and this engine only a KV cache; run it with transformers or llama.cpp"
        )
    if not model_class._supports_attention_backend:
        raise UnsupportedModelError(
            f"{name!r} does not support attention backends in transformers {transformers.__version__}; "
            "run it with transformers' generate"
        )
    return model_class


def _check_layers(config: Any) -> None:
    if unknown := set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}:
        raise UnsupportedModelError(
            f"{config.model_type!r} has {', '.join(sorted(map(str, unknown)))} layers; only {FULL} and {SLIDING} run "
            "here; run it with transformers"
        )
    masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if masked or getattr(config, "use_bidirectional_attention", None):
        raise UnsupportedModelError(
            f"this {config.model_type!r} is bidirectional, an encoder; run it with transformers"
        )


def _check_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    rules = [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]
    kinds = {rule.get("rope_type") for rule in rules} & set(_PER_BATCH_ROPES)
    if kinds:
        raise UnsupportedModelError(
            f"rope type {kinds.pop()!r} of {config.model_type!r} depends on the batch in transformers, which would "
            "break caching; run it with transformers"
        )


def _load_module(model_class: Any, path: Path, config: Any, *, dtype: str, device: torch.device) -> Any:
    try:
        with _no_progress_bars():
            module, report = model_class.from_pretrained(
                path,
                config=config,
                dtype=_DTYPES.get(dtype, "auto"),
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise WeightsError(f"{path}: the weights cannot be loaded: {first_line}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(kind) or ())):
            raise WeightsError(f"{path}: {kind.replace('_', ' ')}: {', '.join(names[:5])} ({len(names)} in all)")
    if dtype == "auto" and module.dtype == torch.float16 and device.type == "cpu":
        module = module.float()
    return module.eval().to(device)


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    logging: Any = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _survey(module: Any, device: torch.device) -> list[AttentionSpec]:
    """Each layer's rules, as its attention was called with them."""
    survey = SurveyStep()
    with torch.inference_mode():
        tokens = torch.zeros(2, dtype=torch.long, device=device)
        forward(module, tokens, torch.arange(2, device=device), survey)
    specs = sorted(survey.specs, key=lambda spec: spec.layer)
    name = type(module).__name__
    if not specs or [spec.layer for spec in specs] != list(range(len(specs))):
        raise UnsupportedModelError(f"{name} does not call attention once per layer; run it with transformers")
    if len({(spec.num_heads, spec.num_kv_heads, spec.head_dim) for spec in specs}) > 1:
        raise UnsupportedModelError(f"the layers of {name} have heads of different shapes; run it with transformers")
    return specs


def _check_windows(config: Any, specs: list[AttentionSpec]) -> None:
    """A config that speaks of sliding layers must have passed windows to them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [SLIDING if getattr(config, "sliding_window", None) else FULL] * len(specs)
    if [kind == SLIDING for kind in kinds] != [spec.window > 0 for spec in specs]:
        raise UnsupportedModelError(
            f"{config.model_type!r} does not tell its attention which layers slide; run it with transformers"
        )


def _info(config: Any, module: Any, specs: list[AttentionSpec]) -> ModelInfo:
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ModelError(f"the config of {config.model_type!r} does not say max_position_embeddings")
    return ModelInfo(
        model_type=config.model_type,
        architecture=type(module).__name__,
        num_layers=len(specs),
        num_heads=specs[0].num_heads,
        num_kv_heads=specs[0].num_kv_heads,
        head_dim=specs[0].head_dim,
        hidden_size=module.get_input_embeddings().embedding_dim,
        vocab_size=module.get_output_embeddings().weight.shape[0],
        max_position=longest,
        max_position_limit=longest,
        windows=tuple(spec.window for spec in specs),
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _probe(model: FallbackModel) -> None:
    """Two sequences, the first in two chunks and past a short window, must equal the module's eager forward."""
    windows = [window for window in model.info.windows if 0 < window <= 64]
    length = min(max([13, *(window + 5 for window in windows)]), model.info.max_position)
    split, block = length // 2, 16
    tokens = np.random.default_rng(0).integers(0, min(model.info.vocab_size, 1000), size=2 * length)
    blocks = -(-length // block)
    shape = model.info.kv_shape(num_blocks=2 * blocks, block_size=block, dtype="f32")
    program = model.compile(model.kv_store(shape), max_tokens=2 * length, max_rows=2, max_logit_rows=2)
    tables = np.arange(2 * blocks, dtype=np.int32).reshape(2, blocks)
    program.run(_probe_inputs(tokens, tables, [(0, 0, split), (1, 0, length)], length))
    ours = [program.logits(1, 2)[0].copy()]
    program.run(_probe_inputs(tokens, tables, [(0, split, length)], length))
    ours.insert(0, program.logits(0, 1)[0].copy())
    expected = _eager_logits(model, tokens.reshape(2, length))
    limit = (1e-3 if model.module.dtype == torch.float32 else 0.1) * max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(np.stack(ours) - expected).max())
    if not difference <= limit:
        raise UnsupportedModelError(
            f"{model.info.architecture} gives other logits in paged batches than by itself (by {difference:.3g}, "
            f"permitted {limit:.3g}); run it with transformers"
        )


def _probe_inputs(
    tokens: npt.NDArray[Any], tables: npt.NDArray[np.int32], chunks: list[tuple[int, int, int]], length: int
) -> StepInputs:
    """Chunks (sequence, start, stop) of sequences of `length` tokens that lie end to end in `tokens`, blocks of 16."""
    positions = np.concatenate([np.arange(start, stop) for _, start, stop in chunks]).astype(np.int32)
    rows = np.concatenate([np.full(stop - start, row) for row, start, stop in chunks])
    starts = np.cumsum([0] + [stop - start for _, start, stop in chunks]).astype(np.int32)
    return StepInputs(
        token_ids=tokens[rows * length + positions].astype(np.int32),
        positions=positions,
        slots=tables[rows, positions // 16] * 16 + positions % 16,
        query_starts=starts,
        seq_lens=np.array([stop for _, _, stop in chunks], dtype=np.int32),
        block_tables=tables[[row for row, _, _ in chunks]],
        logit_rows=starts[1:] - 1,
    )


def _eager_logits(model: FallbackModel, sequences: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The last token's logits of each sequence [2, n] by the module alone. [2, V]"""
    module = model.module
    module.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            ids = torch.from_numpy(sequences).to(model.device)
            return to_numpy(torch.stack([module(row[None], use_cache=False).logits[0, -1] for row in ids]))
    finally:
        module.set_attn_implementation(ATTENTION_NAME)
