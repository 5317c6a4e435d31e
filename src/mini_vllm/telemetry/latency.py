"""Latencies from the token deltas of every step, on the engine's clock.

Fed where the engine hands the deltas out, so neither the front end's work nor a slow reader is in the figures, and a
request whose client has left still counts. Must not know who made the deltas.
"""

from collections.abc import Mapping, Sequence

from mini_vllm.telemetry.histogram import Distribution, Histogram
from mini_vllm.types import RequestMetrics, TokenDelta

_STEPS = (1.0, 1.5, 2.5, 4.0, 6.0)
TOKEN_BOUNDS = tuple(round(step * scale, 6) for scale in (1e-3, 1e-2, 0.1, 1.0) for step in _STEPS)
REQUEST_BOUNDS = tuple(round(step * scale, 6) for scale in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0) for step in _STEPS)

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {  # name -> help, bounds in seconds
    "time_to_first_token_seconds": (
        "From a request's arrival in the engine to its first token; one observation per request that made a token.",
        REQUEST_BOUNDS,
    ),
    "inter_token_latency_seconds": (
        "Between tokens of one request; one observation per token after the first. Tokens of one step share its time.",
        TOKEN_BOUNDS,
    ),
    "queue_time_seconds": ("From arrival to the first step; one observation per request started.", REQUEST_BOUNDS),
    "prefill_time_seconds": ("From the first step to the first token.", REQUEST_BOUNDS),
    "decode_time_seconds": ("From the first token to the last, of requests that ended.", REQUEST_BOUNDS),
    "request_latency_seconds": (
        "From arrival to the end; one observation per request that ended, but for those that a failed step lost.",
        REQUEST_BOUNDS,
    ),
}


class LatencyRecorder:
    """Call it with the deltas of every step, on one thread; read from any."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self._between = self._histograms["inter_token_latency_seconds"]
        self._last: dict[str, float] = {}  # when a running request made its latest token

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        """Take in one step."""
        for delta in deltas:
            num_new = len(delta.token_ids)
            last = self._last.get(delta.request_id)
            if num_new:
                if last is not None:
                    self._between.observe((delta.time - last) / num_new, times=num_new)
                elif num_new > 1:
                    self._between.observe(0.0, times=num_new - 1)
                self._last[delta.request_id] = delta.time
            if delta.metrics is not None:
                self._take(delta.metrics, is_first=num_new > 0 and last is None)
            if delta.finish_reason is not None:
                self._last.pop(delta.request_id, None)

    def read(self) -> Mapping[str, Distribution]:
        """All histograms by name."""
        return {name: histogram.read() for name, histogram in self._histograms.items()}

    def _take(self, times: RequestMetrics, *, is_first: bool) -> None:
        """Times that are known now: at the first token, and at the end."""
        if is_first:
            self._observe("time_to_first_token_seconds", times.arrival, times.first_token)
            self._observe("prefill_time_seconds", times.started, times.first_token)
        if is_first or times.first_token is None:
            self._observe("queue_time_seconds", times.arrival, times.started)
        if times.finished is not None:
            self._observe("decode_time_seconds", times.first_token, times.last_token)
            self._observe("request_latency_seconds", times.arrival, times.finished)

    def _observe(self, name: str, begin: float | None, end: float | None) -> None:
        if begin is not None and end is not None:
            self._histograms[name].observe(end - begin)
