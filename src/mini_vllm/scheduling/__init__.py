"""Who computes what in the next step, and what follows from what was computed."""

from mini_vllm.scheduling.scheduler import Scheduler
from mini_vllm.scheduling.sequence import Sequence

__all__ = ["Scheduler", "Sequence"]
