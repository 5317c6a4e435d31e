"""A model in a Hugging Face folder: config.json and one or more safetensors files. Pickles are never opened."""

import json
import re
from pathlib import Path
from typing import Any

from mini_vllm.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.weights.safetensors import SafetensorsFile

INDEX_NAME = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_OTHERS = (".h5", ".msgpack", ".onnx", ".npz")
_PART = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)

# Buffers that some checkpoints save: they hold no weights, and are computed where needed.
_BUFFERS = re.compile(r"(.*\.)?(rotary_emb\.(inv_freq|cos_cached|sin_cached)|h\.\d+\.attn\.(masked_)?bias)", re.ASCII)


class HFCheckpoint:
    """See `weights.Checkpoint`. Values are read when asked for, one mapped view at a time."""

    layout = "hf"
    tokenizer_metadata: dict[str, Any] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        config = _read_json(path / "config.json")
        if config is None:
            raise _no_config(path)
        self.config: dict[str, Any] = config
        self.generation_config: dict[str, Any] = _read_json(path / "generation_config.json") or {}
        self._files = {name: SafetensorsFile(path / name) for name in weight_file_names(path)}
        self._places = self._collect()
        self._check_index()

    def names(self) -> frozenset[str]:
        """Canonical names of all tensors, without the buffers that hold no weights."""
        return frozenset(self._places)

    def get(self, name: str) -> HostTensor:
        """The tensor of that name."""
        if name not in self._places:
            raise WeightsError(f"{self.path}: there is no tensor {name!r}")
        file, stored_name = self._places[name]
        return file.get(stored_name, rename=name)

    def close(self) -> None:
        """Unmap the files once no view is held."""
        for file in self._files.values():
            file.close()

    def _collect(self) -> dict[str, tuple[SafetensorsFile, str]]:
        found: dict[str, SafetensorsFile] = {}
        for file in self._files.values():
            for name in file.entries:
                if name in found:
                    raise WeightsError(
                        f"{self.path}: tensor {name!r} is in both {found[name].path.name} and {file.path.name}; "
                        "remove the file that does not belong to the model"
                    )
                found[name] = file
        prefix = _missing_prefix(str(self.config.get("model_type")), found)
        return {
            name if name.startswith("lm_head.") else prefix + name: (file, name)
            for name, file in found.items()
            if not _BUFFERS.fullmatch(name)
        }

    def _check_index(self) -> None:
        for name, file_name in _weight_map(self.path).items():
            if name not in self._files[file_name].entries:
                raise WeightsError(
                    f"{self.path}: {INDEX_NAME} says that {file_name} has the tensor {name!r}, but it does not; "
                    "fetch the model again"
                )


def _missing_prefix(model_type: str, names: Any) -> str:
    """Checkpoints of the bare decoder leave out the name of the part that holds it."""
    prefix, layer = ("transformer.", "h.0.") if model_type == "gpt2" else ("model.", "layers.0.")
    return prefix if any(name.startswith(layer) for name in names) else ""


def weight_file_names(path: Path) -> list[str]:
    """The safetensors files that make up the model, whether an index lists them or not."""
    if weight_map := _weight_map(path):
        names = sorted(set(weight_map.values()))
        return _all_present(path, names, f"{INDEX_NAME} lists {len(names)} files")
    if (path / "model.safetensors").exists():
        return ["model.safetensors"]
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if parts := [match for name in found if (match := _PART.fullmatch(name))]:
        total = parts[0].group(2)
        names = [f"model-{index:05d}-of-{total}.safetensors" for index in range(1, int(total) + 1)]
        return _all_present(path, names, f"the model has {int(total)} parts")
    if len(found) != 1:
        raise _no_single_file(path, found)
    return found


def _weight_map(path: Path) -> dict[str, str]:
    index = _read_json(path / INDEX_NAME)
    if index is None:
        return {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path / INDEX_NAME}: there is no weight_map; fetch the file again")
    for name, file_name in weight_map.items():
        # Only files that lie in the folder itself: an index from elsewhere must not point outside.
        if not isinstance(file_name, str) or not re.fullmatch(r"[\w.\-]+\.safetensors", file_name):
            raise WeightsError(
                f"{path / INDEX_NAME}: tensor {name!r:.80} is placed in {file_name!r:.80}, "
                "which is not the name of a safetensors file in the same folder"
            )
    return weight_map


def _all_present(path: Path, names: list[str], claim: str) -> list[str]:
    if missing := [name for name in names if not (path / name).is_file()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise WeightsError(f"{path}: {claim} but {', '.join(missing[:3])}{more} is missing; fetch the model again")
    return names


def _no_single_file(path: Path, found: list[str]) -> Exception:
    if found:
        return WeightsError(
            f"{path}: there are {len(found)} safetensors files and no {INDEX_NAME} that says which belong together"
        )
    names = [file.name for file in path.iterdir() if file.is_file()]
    if pickles := sorted(name for name in names if name.endswith(_PICKLES)):
        return WeightsError(
            f"{path}: weights are only in {pickles[0]}, a pickle, which can run code when it is opened and is refused; "
            "load it with transformers where you trust it and save_pretrained(…, safe_serialization=True), "
            "or take a safetensors or GGUF version of the model"
        )
    others = sorted(name for name in names if name.endswith(_OTHERS))
    detail = f"weights are only in {others[0]}" if others else "there are no weights"
    return WeightsError(f"{path}: {detail}; a model needs *.safetensors files or a .gguf file")


def _no_config(path: Path) -> Exception:
    if (path / "adapter_config.json").exists():
        return UnsupportedModelError(
            f"{path}: this is a LoRA adapter, not a model; merge it into its base model (peft: merge_and_unload) and "
            "save that"
        )
    return ModelNotFoundError(f"{path}: there is no config.json; a model folder needs one beside its safetensors files")


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is not valid JSON ({error}); fetch the file again") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value
