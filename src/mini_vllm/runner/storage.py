"""How many blocks the KV cache gets, and in which number format. Must not know models beyond their KV shape.

Memory counts as free only if this process may really take it: the tightest of the machine's and of every enclosing
control group's remainder.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mini_vllm.config import CacheConfig, parse_bytes
from mini_vllm.errors import ConfigError
from mini_vllm.kernels.table import KVShape

_KV_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "q8"}

MAX_SLOTS = 2**31 - 1  # places for one token each; kernels address them with 32 bits


def kv_format(setting: str, weight_format: str, supported: frozenset[str]) -> str:
    """The KV number format ("f32", "f16", "bf16", "q8"): as set, else float32 for float32 weights, float16 for float16,
    bfloat16 for bfloat16 and quantised ones. What the device cannot hold is an error if set, else float32.
    """
    if setting == "auto":
        chosen = weight_format if weight_format in ("f32", "f16") else "bf16"
        return chosen if chosen in supported else "f32"
    chosen = _KV_FORMATS[setting]
    if chosen not in supported:
        held = ", ".join(name for name, form in _KV_FORMATS.items() if form in supported)
        raise ConfigError(
            f"kv_cache_dtype is {setting} but this device holds K and V in {held} only; choose one of them",
            param="kv_cache_dtype",
        )
    return chosen


def choose_num_blocks(
    config: CacheConfig, shape: KVShape, *, max_model_len: int, max_num_seqs: int, free_bytes: int
) -> int:
    """Blocks of the pool. As told by num_blocks; else as many as the budget holds, but no more than max_num_seqs
    sequences of max_model_len tokens need. ConfigError when the budget cannot hold even one such sequence, or when
    what was asked for is not there.

    `shape.num_blocks` is ignored; `free_bytes` is what this process may still take.
    """
    if config.num_blocks is not None:
        return _checked(config.num_blocks, "num_blocks", shape, free_bytes=free_bytes)
    needed = -(-max_model_len // shape.block_size)
    if config.kv_cache_memory is not None:
        budget, source = parse_bytes(config.kv_cache_memory), "kv_cache_memory"
    else:
        budget, source = int(free_bytes * config.kv_cache_memory_share), "kv_cache_memory_share"
    affordable = budget // replace(shape, num_blocks=1).bytes_per_block
    if affordable < needed:
        fitting = affordable * shape.block_size
        remedy = f"set max_model_len to {fitting} or less, or " if fitting else ""
        raise ConfigError(
            f"the KV cache may take {_mib(budget)} ({source}) which holds {fitting} tokens, but one sequence of "
            f"max_model_len {max_model_len} needs {_mib(needed * shape.bytes_per_block)}; {remedy}raise {source}",
            param=source,
        )
    return _checked(min(affordable, needed * max_num_seqs), source, shape, free_bytes=free_bytes)


def _checked(num_blocks: int, source: str, shape: KVShape, *, free_bytes: int) -> int:
    """num_blocks, if memory holds them and 32 bits address them: pages are taken as they are used, so that too large
    a pool would be killed only under load.
    """
    size = num_blocks * replace(shape, num_blocks=1).bytes_per_block
    if size > free_bytes:
        raise ConfigError(
            f"{source} asks for a KV cache of {_mib(size)}, but {_mib(free_bytes)} are free; lower it", param=source
        )
    if num_blocks * shape.block_size > MAX_SLOTS:
        raise ConfigError(
            f"{source} asks for {num_blocks * shape.block_size} tokens of KV cache; at most {MAX_SLOTS} can be "
            "addressed; lower it",
            param=source,
        )
    return num_blocks


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the least of what the machine has free and what control groups leave."""
    return max(min([_machine_free(root), *_group_remainders(root)]), 0)


def _machine_free(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    # Not Linux: the system does not say what is free, so count on half of what is there.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _group_remainders(root: Path) -> Iterator[int]:
    """Limit minus use (page cache that can be dropped not counted) of each control group around this process."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's; then the container's own group is what is mounted at the base.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            remainder = _group_remainder(base.joinpath(*parts[:depth]), *names)
            if remainder is not None:
                yield remainder


def _group_remainder(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():
        return None  # "max": no limit
    droppable = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cache_name and value.isdigit():
            droppable = int(value)
    return int(limit) - int(usage) + droppable


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
