"""Where weights come from and how they lie in files.

Doors: `resolve` and `pull` (a name to a local path), `open_checkpoint` (a path to settings and tensors).
"""

from mini_vllm.weights.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
