"""The cost model that a name stands for: a file of `mini-vllm bench cost-model`, or hardware and a model's shape."""

import os
from pathlib import Path

from mini_vllm.config import cache_folder
from mini_vllm.errors import ConfigError
from mini_vllm.simulation import fitted, roofline
from mini_vllm.simulation.fitted import FittedCosts
from mini_vllm.simulation.roofline import Roofline

DEFAULT = "CPU:135M"

SimulatedHardware = FittedCosts | Roofline


def default_file() -> Path:
    """Where `mini-vllm bench cost-model` puts its model."""
    return Path(cache_folder()) / "cost-model.json"


def load_costs(name: str | None) -> SimulatedHardware:
    """By name; without one, this machine's file if there is one, else a roofline of a small CPU."""
    if name is None:
        return fitted.read(default_file()) if default_file().is_file() else roofline.parse(DEFAULT)
    if os.sep in name or name.endswith(".json"):
        return fitted.read(Path(name))
    return roofline.parse(name)


def num_blocks(costs: SimulatedHardware, block_size: int) -> int:
    """Blocks of this size in the pool that goes with a cost model."""
    tokens = costs.num_kv_tokens if isinstance(costs, Roofline) else costs.num_blocks * costs.block_size
    if not tokens:
        raise ConfigError(
            "this cost model does not say how large the KV cache is; give --num-blocks", param="num_blocks"
        )
    return tokens // block_size


def max_model_len(costs: SimulatedHardware) -> int:
    """Longest sequence that goes with a cost model."""
    if isinstance(costs, FittedCosts) and costs.max_model_len:
        return costs.max_model_len
    return 131_072


def describe(costs: SimulatedHardware) -> str:
    """In a few words."""
    if isinstance(costs, Roofline):
        group = f" × {costs.parallel}" if costs.parallel > 1 else ""
        return f"roofline of {costs.hardware.name}{group}, {costs.shape.name} at {costs.weight_bits} bits"
    return f"fitted to {costs.about.get('model', 'an engine')} on {costs.about.get('cpu', 'a machine')}"
