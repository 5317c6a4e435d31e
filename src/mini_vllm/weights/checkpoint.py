"""The door to a model's files: one interface over a GGUF file and a Hugging Face folder.

Knows where values lie and what they are called; knows nothing of how a model computes with them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.errors import ModelNotFoundError

if TYPE_CHECKING:
    from mini_vllm.kernels.tensors import HostTensor


class Checkpoint(Protocol):
    """An opened model: settings at hand, tensors mapped and read when asked for.

    Names are Hugging Face's for both layouts ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight",
    "transformer.h.0.attn.c_attn.weight") and so are contents, with one exception: in layout "gguf" the products of
    GPT-2 are already [out, in], where Hugging Face's Conv1D holds [in, out].

    `config` has config.json's keys; of a GGUF file they are translated (see `gguf_config` for rope scaling).
    `tokenizer_metadata` holds a GGUF file's `tokenizer.…` entries; None: read the tokenizer from the folder of `path`.
    """

    path: Path
    layout: str  # "hf" or "gguf"
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_metadata: dict[str, Any] | None

    def names(self) -> frozenset[str]:
        """Of all tensors, less those that hold no weights (masks, rope tables)."""

    def get(self, name: str) -> "HostTensor":
        """The tensor of that name: a read-only view of the mapped file where possible, aligned to its elements."""

    def close(self) -> None:
        """Unmap the files. Views that are still held stay valid."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a `.gguf` file or a folder with safetensors files; whatever is wrong with it is a `ModelError`."""
    path = Path(path)
    if path.is_dir():
        from mini_vllm.weights.hf_checkpoint import HFCheckpoint

        return HFCheckpoint(path)
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file or folder")
    from mini_vllm.weights.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)
