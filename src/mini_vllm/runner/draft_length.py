"""How many guesses pay: per sequence from what was accepted, and from what a row of a step costs at this batch size.

With p the probability that a guess stands, k guesses bring 1 + p + … + p^k tokens in one step instead of 1. A step of n
rows takes T(n) seconds. Guesses of one sequence make the whole batch of B sequences wait, so k pays as long as

    (p + … + p^k) T(B) / B   >   k (T(n + 1) - T(n))          (tokens gained, at what a token costs without guesses)

Must not know tokens, models or who guesses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm.runner.step_costs import StepCosts

_WORTH = 0.5  # of a token gained among several sequences: those that are not ahead keep the batch going


def prices(costs: StepCosts, most: int, *, num_sequences: int, num_rows: int) -> list[float]:
    """What 0 … `most` guesses cost, in tokens that the batch would have made in the same time.

    `num_sequences` sequences decode in the next step, and rows for it already add up to `num_rows`.
    """
    token, base = worth(costs, num_sequences), costs.seconds(num_rows)
    return [(costs.seconds(num_rows + k) - base + k * costs.guess) / token for k in range(most + 1)]


def worth(costs: StepCosts, num_sequences: int) -> float:
    """Seconds that a token is worth which a step makes beyond one for each of its sequences."""
    return costs.seconds(num_sequences) / num_sequences * (_WORTH if num_sequences > 1 else 1.0)


@dataclass(slots=True)
class DraftLength:
    """The number of guesses of one sequence, which changes only when another number is better beyond doubt.

    `expected`: which share of guesses stands in other sequences; it counts as `_PRIOR` guesses of this one.
    """

    most: int
    expected: float = 0.7
    current: int = -1  # not chosen yet
    accepted: float = field(init=False)  # decaying counts of guesses
    tried: float = field(init=False)
    idle: int = 0  # choices since the last guess
    patience: float = 40.0  # of them, after which one guess is tried again

    _PRIOR = 6.0
    _DECAY = 0.985  # per guess: about the last 65 count
    _DOUBT = 1.4  # standard deviations of the share
    _MARGIN = 0.05  # tokens per step
    _PATIENCE = (8.0, 40.0, 1280.0)  # after a guess that stood, at first, at most
    _PROBE_SHARE = 0.01  # of the time at most
    _LOOK_EVERY = 8  # choices while it is idle: prices may have fallen

    def __post_init__(self) -> None:
        self.accepted, self.tried = self.expected * self._PRIOR, self._PRIOR

    @property
    def probability(self) -> float:
        """That a guess stands."""
        return self.accepted / self.tried

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """A step verified `num_drafts` guesses and `num_accepted` stood. What follows a wrong one is untested."""
        if not num_drafts:
            return
        for stood in [True] * num_accepted + [False] * (num_accepted < num_drafts):
            self.accepted = self.accepted * self._DECAY + stood
            self.tried = self.tried * self._DECAY + 1
        if num_accepted:
            self.patience = self._PATIENCE[0]
        elif not self.current:  # it was only tried, in vain: ever more rarely
            self.patience = min(2 * max(self.patience, self._PATIENCE[1] / 2), self._PATIENCE[2])

    def choose(self, prices: Sequence[float], *, num_sequences: int) -> int:
        """Guesses for the next step, at these prices of 0 … most of them. 0: none pays."""
        if self.current or self.idle % self._LOOK_EVERY == 0:
            self.current = self._better(prices)
        if self.current:
            self.idle = 0
            return self.current
        self.idle += 1
        if self.idle < max(self.patience, prices[1] / (self._PROBE_SHARE * num_sequences)):
            return 0
        self.idle = 0
        return 1

    def _better(self, prices: Sequence[float]) -> int:
        """The best number for the measured share, unless the present one may be as good."""
        p = self.probability
        best, most, gain, power = 0, 0.0, 0.0, 1.0
        for k in range(1, len(prices)):
            power *= p
            gain += power
            if gain - prices[k] > most:
                best, most = k, gain - prices[k]
        if self.current < 0:
            return best if most > self._MARGIN else 0
        if best == self.current:
            return best
        doubt = self._DOUBT * math.sqrt(max(p * (1 - p), 0.02) / self.tried)
        for possible in (p - doubt, p + doubt):
            better = _gain(possible, best) - prices[best] - (_gain(possible, self.current) - prices[self.current])
            if better <= (self._MARGIN if best else 0.0):
                return self.current
        return best


def _gain(p: float, count: int) -> float:
    """Tokens per step that `count` guesses bring."""
    p = min(max(p, 0.0), 0.99)
    return p * (1 - p**count) / (1 - p)


class Account:
    """Seconds that guesses have cost, less what they brought. Guessing pauses while more is lost than is allowed.

    Prices may be wrong; this is what really happened. A share of all time may be lost, and `limit` steps at once.
    """

    _SHARE = 0.008  # of the time of steps
    _CREDIT = 8.0  # steps

    def __init__(self, limit: float = 2.0) -> None:
        self.lost = 0.0
        self._limit = limit
        self._step = 0.0  # seconds of the last one, without its guesses
        self._paused = False

    def book(self, step: float, *, cost: float, gain: float) -> None:
        """A step that takes `step` seconds without guesses took `cost` more with them and saved `gain`."""
        self._step = step
        self.lost = max(self.lost - self._SHARE * step - gain, -self._CREDIT * step)
        self.spend(cost)

    def spend(self, seconds: float) -> None:
        """Guesses took this time."""
        self.lost += seconds
        self._paused = self.lost > (0.0 if self._paused else self._limit * self._step)

    @property
    def allows(self) -> bool:
        """Whether to guess at all."""
        return not self._paused
