"""How many compute threads this process should use by default.

Physical cores (not hyper-threads) that the affinity mask allows, at most the CPU quota of the control group, rounded
down. Must not know the native library.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from mini_vllm.errors import ConfigError


def default_threads() -> int:
    """$MINI_VLLM_THREADS, else physical cores allowed to this process; at least 1."""
    if text := os.environ.get("MINI_VLLM_THREADS"):
        if not text.isdigit() or int(text) < 1:
            raise ConfigError(
                f"MINI_VLLM_THREADS is {text!r}; it must be a whole number of at least 1", param="threads"
            )
        return int(text)
    cores = physical_cores(allowed_cpus())
    quota = cpu_quota(Path("/sys/fs/cgroup"))
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


def cpu_quota(root: Path) -> float | None:
    """CPUs that the control group grants (versions 2 and 1), or None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1") or float(period) <= 0:
        return None
    return float(quota) / float(period)
