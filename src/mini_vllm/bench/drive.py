"""The order of measurements: ours, a peer, ours, the next peer … (A B A C …), round after round, until time is up.

Every sample of a peer is compared with the sample of ours taken just before it. Must not know what engines are.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from mini_vllm.bench.rows import DISTURBED, Pair, Row, failed, row_of_pairs
from mini_vllm.bench.subject import Sample, SubjectError
from mini_vllm.bench.workloads import Work

logger = logging.getLogger(__name__)


class Measurable(Protocol):
    """See `subject.Subject`."""

    @property
    def label(self) -> str:
        """For messages."""

    def warm(self, work: Work, *, seed: int) -> None:
        """Meet the shape."""

    def measure(self, work: Work, *, seed: int) -> Sample:
        """One measurement; `SubjectError` when it fails."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A contest of one work ends after `most` pairs, or once it has `least` and took `seconds`; all at `deadline`.

    insists: pairs during which others used much of the machine do not count as `least`.
    """

    least: int
    most: int
    seconds: float
    deadline: float = float("inf")
    insists: bool = False


@dataclass(slots=True)
class Contest:
    """One form of a peer against one or more of ours; each gives a row."""

    peer: Measurable
    ours: Sequence[tuple[Measurable, Row]]  # the row to fill: weights, peer and detail are set
    pairs: list[list[Pair]] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None


class Drive:
    """Runs contests of one work at a time. Time comes from `clock`, in seconds."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace, self._clock = pace, clock
        self._seed = 0

    def run(self, work: Work, contests: Sequence[Contest]) -> Iterator[Row]:
        """All rounds of a work; its rows, in the order of the contests."""
        for contest in contests:
            contest.pairs, contest.seconds, contest.error = [[] for _ in contest.ours], 0.0, None
            self._guard(contest, lambda contest=contest: self._warm(work, contest))  # type: ignore[misc]
        while active := [contest for contest in contests if self._goes_on(contest)]:
            for contest in filter(self._goes_on, active):
                self._guard(contest, lambda contest=contest: self._round(work, contest))  # type: ignore[misc]
        for contest in contests:
            yield from _rows(work, contest)

    def _goes_on(self, contest: Contest) -> bool:
        count = len(contest.pairs[0])
        if contest.error is not None or count >= self._pace.most:
            return False
        if self._clock() >= self._pace.deadline:
            if count == 0:
                contest.error = "left out: the time for the whole run was up"
            return False
        if self._pace.insists:
            count = sum((pair.foreign or 0.0) <= DISTURBED for pair in contest.pairs[0])
        return count < self._pace.least or contest.seconds < self._pace.seconds

    def _warm(self, work: Work, contest: Contest) -> None:
        if self._clock() < self._pace.deadline:
            for subject in (*(ours for ours, _ in contest.ours), contest.peer):
                subject.warm(work, seed=self._next_seed())

    def _round(self, work: Work, contest: Contest) -> None:
        start = self._clock()
        seed = self._next_seed()
        ours = [subject.measure(work, seed=seed) for subject, _ in contest.ours]
        theirs = contest.peer.measure(work, seed=seed)
        for pairs, sample in zip(contest.pairs, ours):
            pairs.append(Pair(sample, theirs))
        contest.seconds += self._clock() - start
        figures = ", ".join(f"{sample.rate:.1f}" for sample in ours)
        logger.info("%s: ours %s, %s %.1f", work.name, figures, contest.peer.label, theirs.rate)

    def _guard(self, contest: Contest, action: Callable[[], None]) -> None:
        """A failure ends the contest, not the run."""
        try:
            action()
        except SubjectError as error:
            contest.error = str(error)
            logger.warning("%s", error)

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


def _rows(work: Work, contest: Contest) -> Iterator[Row]:
    for pairs, (_, empty) in zip(contest.pairs, contest.ours):
        row = replace(empty, work=work.name)
        if pairs:  # what was measured before a failure counts
            yield row_of_pairs(row, pairs)
        else:
            yield failed(row, contest.error or "not measured")
