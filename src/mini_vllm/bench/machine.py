"""What this machine is, and how much of it others use while something is measured.

Linux only: elsewhere shares are None. Must not know engines or workloads.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_CPU_FIELDS = 8  # user nice system idle iowait irq softirq steal
_IDLE, _IOWAIT = 3, 4


def busy_seconds(proc: Path = PROC) -> float:
    """Processor time that was not idle since boot, all processors together, stolen time included."""
    fields = [int(text) for text in (proc / "stat").read_text().split("\n", 1)[0].split()[1 : _CPU_FIELDS + 1]]
    return (sum(fields) - fields[_IDLE] - fields[_IOWAIT]) / os.sysconf("SC_CLK_TCK")


def tree_seconds(pid: int, proc: Path = PROC) -> float:
    """Processor time of a process, of those below it that live, and of those that it has waited for."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        used[int(folder.name)] = sum(map(int, fields[11:15]))  # utime stime cutime cstime
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    ticks, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        ticks += used.get(current, 0)
        waiting += children.get(current, ())
    return ticks / os.sysconf("SC_CLK_TCK")


class LoadMeter:
    """`begin()` … `foreign()`: the share of the machine that processes outside our own tree used in between."""

    def __init__(self, *, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._start: tuple[float, float, float] | None = None

    def begin(self) -> None:
        """Start the interval."""
        self._start = self._now()

    def foreign(self) -> float | None:
        """0 to 1, of all processors together; None where it cannot be known."""
        now = self._now()
        if now is None or self._start is None:
            return None
        busy, own, seconds = (new - old for new, old in zip(now, self._start))
        if seconds <= 0:
            return None
        return round(min(1.0, max(0.0, (busy - own) / (seconds * (os.cpu_count() or 1)))), 3)

    def _now(self) -> tuple[float, float, float] | None:
        try:
            return busy_seconds(self._proc), tree_seconds(os.getpid(), self._proc), self._clock()
        except (OSError, ValueError, IndexError):
            return None


def describe(proc: Path = PROC) -> dict[str, Any]:
    """Processor, cores, memory and system, for the record."""
    return {
        "cpu": _cpu_name(proc),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_name(proc: Path) -> str:
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    found = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    name = found.get("model name", platform.processor() or "unknown")
    return f"{name} (family {found['cpu family']}, model {found['model']})" if "cpu family" in found else name


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
