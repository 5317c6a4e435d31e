"""What a step of so many rows costs, and a guess, as measured. Must not know sequences or who guesses."""

from bisect import bisect_left, bisect_right

_BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
_UNKNOWN_ROW = 0.4  # of a step's seconds, over its rows or 4: what a further row costs until it has been measured


class StepCosts:
    """Seconds of a step by its number of rows: a running mean in each bucket of rows, times the machine's present pace.

    Every step says how fast the machine is now, so a bucket seen long ago is still comparable with one seen just now.
    """

    _PACE, _SHAPE = 0.1, 0.1  # how far one step moves them

    def __init__(self) -> None:
        self._buckets: list[int] = []  # those seen, rising
        self._shape: dict[int, float] = {}  # seconds at pace 1
        self._counts: dict[int, int] = {}
        self._pace = 1.0
        self._known: dict[int, float] = {}  # answers of `seconds` since the last observation
        self.guess = 0.0  # seconds that the drafter takes for one guess

    def observe_guesses(self, count: int, seconds: float) -> None:
        """The drafter was asked for `count` guesses."""
        each = seconds / max(1, count)
        self.guess = each if self.guess == 0 else self.guess + 0.1 * (min(each, 2 * self.guess) - self.guess)

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of `num_rows` rows, all of decoding sequences. Outliers count as twice the mean."""
        self._known.clear()
        bucket = _BUCKETS[bisect_right(_BUCKETS, num_rows) - 1]
        count = self._counts.get(bucket, 0)
        self._counts[bucket] = count + 1
        if not count:
            self._shape[bucket] = seconds / self._pace
            self._buckets = sorted(self._shape)
            return
        expected = self._shape[bucket] * self._pace
        seconds = min(seconds, 2 * expected)
        if len(self._shape) > 1:
            self._pace *= 1 + self._PACE * (seconds / expected - 1)
        self._shape[bucket] += max(self._SHAPE, 1 / (count + 1)) * (seconds / self._pace - self._shape[bucket])

    def knows(self, num_rows: int) -> bool:
        """Whether a few steps of so many rows were seen."""
        return self._counts.get(_BUCKETS[bisect_right(_BUCKETS, num_rows) - 1], 0) >= 3

    def seconds(self, num_rows: int) -> float:
        """Of a step; by interpolation between measured buckets, never falling with rows."""
        found = self._known.get(num_rows)
        if found is None:
            found = self._known[num_rows] = self._interpolate(num_rows)
        return found

    def _interpolate(self, num_rows: int) -> float:
        buckets = self._buckets
        if not buckets:
            return 1.0 + _UNKNOWN_ROW / 4 * (num_rows - 1)
        index = bisect_left(buckets, num_rows)
        if index == len(buckets) or (index == 0 and buckets[0] != num_rows):
            known = buckets[min(index, len(buckets) - 1)]
            return self._shape[known] * self._pace * (1 + _UNKNOWN_ROW * (num_rows - known) / max(known, 4))
        above = buckets[index]
        if above == num_rows:
            return self._shape[above] * self._pace
        below = buckets[index - 1]
        low, high = self._shape[below], max(self._shape[below], self._shape[above])
        return (low + (num_rows - below) / (above - below) * (high - low)) * self._pace
