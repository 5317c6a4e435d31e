"""Stop strings in streamed text.

Pure state machine. Only a suffix that is a proper prefix of some stop is held back; everything else is passed on at
once, nothing is lost and nothing of a stop leaks. Must not know tokens or requests.
"""

from collections.abc import Iterable


class StopStrings:
    """Finds the first of several stop strings.

    The stop that is complete first wins, whatever the order of the list; of stops that end at the same character,
    the one that begins first. The result does not depend on how the text was cut into pushes.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include
        self._held = ""
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self.matched: str | None = None

    def push(self, text: str, *, active: bool = True) -> tuple[str, str | None]:
        """(text to emit now, the stop that matched or None). After a match nothing more is emitted.

        With `active=False` (before min_tokens) stops that end inside `text` do not count and are emitted as ordinary
        text; a stop that begins there and ends in later, active text does count, and is held back like any other.
        """
        if self.matched is not None:
            return "", self.matched
        known, pending = len(self._held), self._held + text
        if active and (found := self._first_match(pending, known)) is not None:
            start, self.matched = found
            self._held = ""
            end = start + len(self.matched) if self._include else start
            return pending[:end], self.matched
        keep = self._held_length(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], None

    def flush(self) -> str:
        """The text held back, at the end of the stream: it did not become a stop."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, pending: str, known: int) -> tuple[int, str] | None:
        """(start, stop) of the match that ends first after the `known` characters seen before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = pending.find(stop, max(0, known - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _held_length(self, pending: str) -> int:
        """Length of the longest suffix that is a proper prefix of a stop."""
        for length in range(min(len(pending), self._longest - 1), 0, -1):
            suffix = pending[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
