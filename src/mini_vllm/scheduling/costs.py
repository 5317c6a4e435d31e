"""What a step costs in seconds, as a function of what it computes.

The scheduler asks a cost model how long a step would take with one more chunk of prefill in it; the simulator asks the
same models instead of computing anything. The engine's learns from its own steps. This module must not know clocks,
sequences or requests: it is told what was done and how long that took.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.types import Chunk


@dataclass(slots=True)
class StepLoad:
    """What a step computes, in the numbers that its time depends on."""

    num_tokens: int = 0  # rows of the forward pass
    num_samples: int = 0  # rows of logits
    context: int = 0  # tokens whose K and V are read: the length of every sequence after its chunk
    attended: int = 0  # pairs of a query and a key

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> "StepLoad":
        """The load of a plan's chunks."""
        load = cls()
        num_tokens = num_samples = context = attended = 0
        for chunk in chunks:
            length = len(chunk.token_ids)
            end = chunk.start + length
            num_tokens += length
            context += end
            attended += end if length == 1 else length * chunk.start + length * (length + 1) // 2
            num_samples += chunk.samples
        load.num_tokens, load.num_samples, load.context, load.attended = num_tokens, num_samples, context, attended
        return load

    def with_chunk(self, start: int, length: int, *, samples: bool) -> "StepLoad":
        """This load and a chunk of `length` tokens from position `start` on."""
        return StepLoad(
            self.num_tokens + length,
            self.num_samples + samples,
            self.context + start + length,
            self.attended + length * start + length * (length + 1) // 2,
        )


class CostModel(Protocol):
    """Seconds of a step. Grows with every number of its load."""

    def seconds(self, load: StepLoad) -> float:
        """How long a step of this load takes."""

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step of this load took so long."""


class LinearCosts:
    """A fixed model: so much for a step, and for each of what it computes. For tests and golden traces."""

    def __init__(
        self, *, step: float = 0.0, token: float = 0.0, sample: float = 0.0, context: float = 0.0, attended: float = 0.0
    ) -> None:
        self._step, self._token, self._sample = step, token, sample
        self._context, self._attended = context, attended

    def seconds(self, load: StepLoad) -> float:
        """The sum."""
        return (
            self._step
            + self._token * load.num_tokens
            + self._sample * load.num_samples
            + self._context * load.context
            + self._attended * load.attended
        )

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learns nothing."""


class MeasuredCosts:
    """Learns from the steps of this engine.

    Steps of similar load share a cell (powers of two of tokens, samples and attended pairs). A cell keeps an average
    that forgets: its mean load and mean time. Every `REFIT` steps a non-negative linear model is fitted to the cells by
    least squares of relative errors, so that short steps count as much as long ones. Cells that have not been seen
    lately stay, so that an hour of decoding does not unlearn what prefill costs.
    """

    REFIT = 16
    FORGET = 0.2  # weight of the newest step in its cell
    PRIOR = (2e-3, 1e-3, 0.0, 0.0)  # seconds per step, token, sample and attended pair, before anything is known

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int, int], list[float]] = {}  # key -> tokens, samples, attended, seconds
        self._weights: tuple[float, ...] = self.PRIOR
        self._since_fit = self.REFIT  # the first step is learned from at once

    def seconds(self, load: StepLoad) -> float:
        """By the latest fit."""
        step, token, sample, attended = self._weights
        return step + token * load.num_tokens + sample * load.num_samples + attended * load.attended

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Average a step into its cell."""
        if not load.num_tokens or seconds <= 0.0:
            return
        key = (load.num_tokens.bit_length(), load.num_samples.bit_length(), load.attended.bit_length())
        new = (float(load.num_tokens), float(load.num_samples), float(load.attended), seconds)
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = list(new)
            self._since_fit = self.REFIT
        else:
            new = (*new[:3], min(seconds, 3.0 * cell[3]))  # one hiccup does not make the next minute careful
            for i in range(4):
                cell[i] += self.FORGET * (new[i] - cell[i])
        self._since_fit += 1
        if self._since_fit > self.REFIT:
            self._since_fit = 0
            self._weights = self._fit()

    def _fit(self) -> tuple[float, ...]:
        rows: list[tuple[float, ...]] = [(1.0, *cell[:3]) for cell in self._cells.values()]
        return tuple(fit_relative(rows, [cell[3] for cell in self._cells.values()], prior=self.PRIOR))


def fit_relative(
    rows: Sequence[tuple[float, ...]],
    seconds: Sequence[float],
    *,
    prior: tuple[float, ...],
    trust: float = 1e-3,
    by: Sequence[float] | None = None,
) -> list[float]:
    """Weights w ≥ 0 that make row·w close to seconds: least squares of relative errors, drawn slightly to `prior`.

    Errors are relative to `by`, by default the seconds themselves. `trust` says how much a weight's distance from the
    prior counts beside one row's error. Weights that come out negative are set to 0 and the others fitted again.
    """
    by = seconds if by is None else by
    size = len(prior)
    scale = [max(abs(row[i]) / unit for row, unit in zip(rows, by, strict=True)) or 1.0 for i in range(size)]
    scaled = [[row[i] / (unit * scale[i]) for i in range(size)] for row, unit in zip(rows, by, strict=True)]
    targets = [time / unit for time, unit in zip(seconds, by, strict=True)]
    active = list(range(size))
    while True:
        matrix = [[sum(row[i] * row[j] for row in scaled) + (trust if i == j else 0.0) for j in active] for i in active]
        right = [
            sum(row[i] * target for row, target in zip(scaled, targets, strict=True)) + trust * prior[i] * scale[i]
            for i in active
        ]
        found = dict(zip(active, solve(matrix, right), strict=True))
        negative = [i for i in active if found[i] < 0.0]
        if not negative:
            return [found.get(i, 0.0) / scale[i] for i in range(size)]
        active.remove(min(negative, key=lambda i: found[i]))


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, by Gaussian elimination with pivots."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found
