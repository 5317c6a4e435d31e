"""How many compute threads this process should use by default.

Physical cores (not hyper-threads) that the affinity mask allows, at most the CPU quota of the control group, rounded
down. Must not know the native library.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mini_vllm.config import MAX_THREADS
from mini_vllm.errors import ConfigError


def default_threads() -> int:
    """$MINI_VLLM_THREADS, else physical cores allowed to this process; at least 1."""
    if text := os.environ.get("MINI_VLLM_THREADS"):
        if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
            raise ConfigError(
                f"MINI_VLLM_THREADS is {text!r:.50}; it must be a whole number from 1 to {MAX_THREADS}", param="threads"
            )
        return int(text)
    cores = physical_cores(allowed_cpus())
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def allowed_cpus() -> frozenset[int]:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(cpus: Iterable[int], system: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many different cores these logical processors belong to. Unknown topology: each counts as its own."""
    return len({_core_of(cpu, system) for cpu in cpus})


def _core_of(cpu: int, system: Path) -> str:
    siblings = system / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return siblings.read_text().strip()
    except OSError:
        return str(cpu)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that control groups grant: the least of all groups around this process; None without a limit."""
    return min(_group_quotas(root), default=None)


def _group_quotas(root: Path) -> Iterator[float]:
    """Of every control group around this process that has one; versions 2 and 1."""
    names: tuple[str, ...]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        # In a container the path may be the host's; then the container's own group is what is mounted at the base.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            folder = base.joinpath(*parts[:depth])
            numbers = " ".join(_read(folder / name) for name in names).split()
            if len(numbers) == 2 and all(number.isdecimal() for number in numbers) and int(numbers[1]):
                yield int(numbers[0]) / int(numbers[1])  # no limit is "max", or -1


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
