"""How many guesses pay: per sequence from what was accepted, and from what a row of a step costs at this batch size.

With p the probability that a guess stands, k guesses bring 1 + p + … + p^k tokens in one step instead of 1. A step of n
rows takes T(n) seconds. Guesses of one sequence make the whole batch of B sequences wait, so k pays as long as

    (p + … + p^k) T(B) / B   >   k (T(n + 1) - T(n))          (tokens gained, at what a token costs without guesses)

Must not know tokens, models or who guesses.
"""

import math
from dataclasses import dataclass, field

_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
_UNKNOWN_ROW = 0.1  # of a step's seconds: what a further row costs until it has been measured


class StepCosts:
    """Seconds of a step by its number of rows, as measured: a running mean in each bucket of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self.guess = 0.0  # seconds that the drafter takes for one guess

    def observe_guesses(self, count: int, seconds: float) -> None:
        """The drafter was asked for `count` guesses."""
        each = seconds / max(1, count)
        self.guess = each if self.guess == 0 else self.guess + 0.1 * (min(each, 2 * self.guess) - self.guess)

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of `num_rows` rows, all of decoding sequences. Outliers count as twice the mean."""
        bucket = _bucket(num_rows)
        known = self._seconds.get(bucket)
        if known is None:
            self._seconds[bucket] = seconds
        else:
            self._seconds[bucket] = known + 0.1 * (min(seconds, 2 * known) - known)

    def seconds(self, num_rows: int) -> float:
        """Of a step; by interpolation between measured buckets, never falling with rows."""
        if not self._seconds:
            return 1.0 + _UNKNOWN_ROW * (num_rows - 1)
        below = max((b for b in self._seconds if b <= num_rows), default=None)
        above = min((b for b in self._seconds if b >= num_rows), default=None)
        if below is None or above is None:
            known = below if below is not None else above
            assert known is not None
            return self._seconds[known] * (1 + _UNKNOWN_ROW * (num_rows - known) / known)
        low, high = self._seconds[below], max(self._seconds[below], self._seconds[above])
        share = 0.0 if above == below else (num_rows - below) / (above - below)
        return low + share * (high - low)


def _bucket(num_rows: int) -> int:
    return max((b for b in _BUCKETS if b <= num_rows), default=_BUCKETS[0])


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
    idle: int = 0  # steps since the last guess

    _PRIOR = 4.0
    _DECAY = 0.985  # per guess: about the last 65 count
    _DOUBT = 1.4  # standard deviations of the share
    _MARGIN = 0.05  # tokens per step
    _PROBE_EVERY = 40  # steps without guesses, after which one is tried again, if one costs
    _PROBE_SHARE = 0.01  # of the time at most

    def __post_init__(self) -> None:
        self.accepted, self.tried = self.expected * self._PRIOR, self._PRIOR

    @property
    def probability(self) -> float:
        """That a guess stands."""
        return self.accepted / self.tried

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """A step verified `num_drafts` guesses and `num_accepted` stood. What follows a wrong one is untested."""
        for stood in [True] * num_accepted + [False] * (num_accepted < num_drafts):
            self.accepted = self.accepted * self._DECAY + stood
            self.tried = self.tried * self._DECAY + 1

    def choose(self, costs: StepCosts, *, num_sequences: int, num_rows: int) -> int:
        """Guesses for the next step, in which `num_sequences` sequences decode and others already add up to `num_rows`
        rows. 0: none pays."""
        token = costs.seconds(num_sequences) / num_sequences
        base = costs.seconds(num_rows)
        prices = [(costs.seconds(num_rows + k) - base + k * costs.guess) / token for k in range(self.most + 1)]
        self.current = self._better(prices)
        if self.current:
            self.idle = 0
            return self.current
        self.idle += 1
        if self.idle < max(self._PROBE_EVERY, prices[1] / (self._PROBE_SHARE * num_sequences)):
            return 0
        self.idle = 0
        return 1

    def _better(self, prices: list[float]) -> int:
        """The best number for the measured share, unless the present one may be as good."""

        def gains(p: float) -> list[float]:
            """Tokens per step, less what they cost in tokens, of 0 … most guesses."""
            p = min(max(p, 0.0), 0.99)
            return [p * (1 - p**k) / (1 - p) - price for k, price in enumerate(prices)]

        at = gains(self.probability)
        best = max(range(len(at)), key=lambda k: (at[k], -k))
        if self.current < 0:
            return best if at[best] > self._MARGIN else 0
        doubt = self._DOUBT * math.sqrt(max(self.probability * (1 - self.probability), 0.02) / self.tried)
        for p in (self.probability - doubt, self.probability + doubt):
            found = gains(p)
            if found[best] <= found[self.current] + (self._MARGIN if best else 0.0):
                return self.current
        return best
