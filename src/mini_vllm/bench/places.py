"""Where things lie: the peers' environments and model files, and the scripts that drive them."""

import os
from pathlib import Path

from mini_vllm.errors import ConfigError

_BASE = "~/.cache/mini-vllm-peers"


def peers_base() -> Path:
    """$PEERS_BASE, else ~/.cache/mini-vllm-peers: venv/NAME, build/, models/."""
    return Path(os.environ.get("PEERS_BASE") or _BASE).expanduser()


def models_folder() -> Path:
    """Forms of the model for every engine."""
    return peers_base() / "models"


def benchmarks_folder() -> Path:
    """The checkout's benchmarks/; `ConfigError` in an installation without one."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not (folder / "peers").is_dir():
        raise ConfigError(
            f"{folder} does not exist: the benchmarks run from a checkout; clone the repository and use `make peers`"
        )
    return folder
