"""From a checkpoint to a model on a device. Must not know: file formats, steps, caches."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.table import Device, Model
from mini_vllm.models import decoder, gpt2
from mini_vllm.models.registry import model_spec
from mini_vllm.models.source import Checkpoint, Loader, Survey, kept_format
from mini_vllm.models.spec import DecoderSpec, ModelInfo

_BUILDERS: dict[type, Callable[..., Model]] = {DecoderSpec: decoder.build, gpt2.GPT2Spec: gpt2.build}

_HEADS = ("lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight")  # the first that is there


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSummary:
    """What a checkpoint holds, without loading it."""

    num_parameters: int
    num_bytes: int
    formats: dict[str, int]  # bytes by number format, most first


def summarise_weights(checkpoint: Checkpoint) -> WeightSummary:
    """Counts from names and shapes; raises as loading would if tensors do not fit the config."""
    spec: Any = model_spec(checkpoint.config)
    survey = Survey(checkpoint)
    _BUILDERS[type(spec)](spec, survey, max_model_len=1)
    survey.raise_problems()
    formats: Counter[str] = Counter()
    for name in checkpoint.names():
        tensor = checkpoint.get(name)
        formats[tensor.format] += tensor.data.nbytes
    return WeightSummary(
        num_parameters=survey.num_parameters, num_bytes=formats.total(), formats=dict(formats.most_common())
    )


def greedy_head_bytes(checkpoint: Checkpoint, device: Device, *, dtype: str = "auto") -> int:
    """Memory that `device` will take beside the model's weights for its output head, see `Device.greedy_head_bytes`."""
    name = next((name for name in _HEADS if name in checkpoint.names()), None)
    head = None if name is None else checkpoint.get(name)
    softcap: float = getattr(model_spec(checkpoint.config), "logit_softcap", 0.0)
    if head is None or len(head.shape) != 2 or softcap:
        return 0
    return device.greedy_head_bytes(kept_format(head.format, device, dtype), *head.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model whose weights live on a device."""

    model: Model
    info: ModelInfo
    num_parameters: int
    weight_bytes: int  # as the device was given them


def load_model(checkpoint: Checkpoint, device: Device, *, dtype: str = "auto", max_model_len: int) -> LoadedModel:
    """Check every tensor's name and shape, then load tensor by tensor.

    dtype: auto, float32, bfloat16 or float16. max_model_len in tokens fixes the length of the rope tables, and the
    scaling of those rope types that depend on a length.
    """
    spec: Any = model_spec(checkpoint.config)
    info: ModelInfo = spec.info
    if max_model_len > info.max_position_limit:
        raise ConfigError(
            f"max_model_len is {max_model_len} but {info.architecture} reads at most {info.max_position_limit} tokens; "
            "lower it",
            param="max_model_len",
        )
    build = _BUILDERS[type(spec)]
    survey = Survey(checkpoint)
    build(spec, survey, max_model_len=max_model_len)
    survey.raise_problems()
    loader = Loader(checkpoint, device, dtype)
    model = build(spec, loader, max_model_len=max_model_len)
    return LoadedModel(model=model, info=info, num_parameters=survey.num_parameters, weight_bytes=loader.weight_bytes)
