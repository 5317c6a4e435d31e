"""Who computes what in the next step, and what follows from what was computed."""

from mini_vllm.scheduling.costs import CostModel, LinearCosts, MeasuredCosts, StepLoad
from mini_vllm.scheduling.scheduler import Scheduler
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.scheduling.trace import RequestRecord, StepRecord, Trace

__all__ = [
    "CostModel",
    "LinearCosts",
    "MeasuredCosts",
    "RequestRecord",
    "Scheduler",
    "Sequence",
    "StepLoad",
    "StepRecord",
    "Trace",
]
