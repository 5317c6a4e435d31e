"""Where weights come from and how they lie in files.

Doors: `resolve` and `pull` (a name to a local path), `open_checkpoint` (a path to settings and tensors).
"""

from mini_vllm.weights.aliases import ALIASES
from mini_vllm.weights.checkpoint import Checkpoint, open_checkpoint
from mini_vllm.weights.sources import pull, resolve, resolve_tokenizer

__all__ = ["ALIASES", "Checkpoint", "open_checkpoint", "pull", "resolve", "resolve_tokenizer"]
