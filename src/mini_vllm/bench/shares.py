"""Our share of the computed limit, pair by pair: memory may be half as fast a minute later, so every sample of ours is
held against the bandwidth that was there just before and just after it.

Must not know engines or the order of measurements.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from mini_vllm.bench.drive import Measurable
from mini_vllm.bench.limits import Limits
from mini_vllm.bench.roofline import Shape, Weights, average_history, limit, step_bytes
from mini_vllm.bench.rows import Row
from mini_vllm.bench.subject import Sample
from mini_vllm.bench.workloads import Work

STEADY = 1.15
"""A sample between whose readings the bandwidth changed by more counts only when there is no steadier one."""

Bandwidth = Callable[[float], float | None]
"""Bytes per second right now when so many bytes are read over and over; None if that cannot be known."""


@dataclass(frozen=True, slots=True)
class Gauged:
    """One of ours whose samples carry the bandwidth beside them, over as many bytes as a step of the work reads."""

    subject: Measurable
    shape: Shape
    weights: Weights
    bandwidth: Bandwidth

    @property
    def label(self) -> str:
        """Of the subject."""
        return self.subject.label

    def warm(self, work: Work, *, seed: int) -> None:
        """Meet the shape."""
        self.subject.warm(work, seed=seed)

    def measure(self, work: Work, *, seed: int) -> Sample:
        """One measurement; a prompt's limit is arithmetic alone, so nothing is read beside it."""
        if work.kind == "prompt":
            return self.subject.measure(work, seed=seed)
        num_bytes = step_bytes(work.batch, average_history(work), shape=self.shape, weights=self.weights)
        before = self.bandwidth(num_bytes)
        sample = self.subject.measure(work, seed=seed)
        after = self.bandwidth(num_bytes)
        return replace(sample, bandwidths=tuple(rate for rate in (before, after) if rate is not None))


def is_steady(sample: Sample) -> bool:
    """Whether the bandwidth stayed from one reading beside the sample to the other."""
    return max(sample.bandwidths) <= STEADY * min(sample.bandwidths)


def with_share(row: Row, work: Work, *, shape: Shape, weights: Weights, limits: Limits) -> Row:
    """The row with the median share of its samples, each at the mean of its own two bandwidths and the run's peaks.

    Without any reading beside it (prompts, for one) the row is held against the run's bandwidth.
    """
    if row.ours is None:
        return row
    read = [sample for sample in row.samples if sample.bandwidths]
    counted = [sample for sample in read if is_steady(sample)] or read
    if not counted:
        return replace(row, limit_share=row.ours / limit(work, shape, weights, limits))
    rates = [statistics.mean(sample.bandwidths) for sample in counted]
    shares = [
        sample.rate / limit(work, shape, weights, limits.with_bandwidth(rate)) for sample, rate in zip(counted, rates)
    ]
    return replace(row, limit_share=statistics.median(shares), bandwidth=statistics.median(rates) / 1e9)
