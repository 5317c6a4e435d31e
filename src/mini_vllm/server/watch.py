"""Tells a hang from a long step: while a step is in flight, something must move. Must not know what moves."""

from collections.abc import Callable, Hashable

SECONDS_PER_OPERATION = 5.0  # without progress, for executors that count their operations
SECONDS_PER_STEP = 120.0  # for those that do not: longer than any step should take


class StallWatch:
    """Looks at a marker from time to time. Any thread, but one at a time; look at least once a second."""

    def __init__(self, marker: Callable[[], Hashable | None], *, limit: float, clock: Callable[[], float]) -> None:
        """`marker` changes with any progress and is None while there is nothing to do. `limit`: seconds."""
        self.limit = limit
        self._marker = marker
        self._clock = clock
        self._seen: Hashable | None = None
        self._since = 0.0

    def is_stalled(self) -> bool:
        """Whether work is in flight and nothing has moved for the limit."""
        marker, now = self._marker(), self._clock()
        if marker is None or marker != self._seen:
            self._seen, self._since = marker, now
        return marker is not None and now - self._since >= self.limit
