"""Token deltas to latencies, by hand-made steps."""

from mini_vllm.telemetry import LatencyRecorder
from mini_vllm.types import RequestMetrics, TokenDelta


def delta(time: float, *, tokens: int = 1, name: str = "a", **options) -> TokenDelta:
    return TokenDelta(request_id=name, token_ids=(7,) * tokens, time=time, **options)


def sums(recorder: LatencyRecorder) -> dict[str, tuple[int, float]]:
    return {name.removesuffix("_seconds"): (found.count, found.total) for name, found in recorder.read().items()}


def test_the_times_of_one_request() -> None:
    recorder = LatencyRecorder()
    first = RequestMetrics(arrival=1.0, started=2.0, first_token=4.0, last_token=4.0)
    recorder([delta(4.0, metrics=first)])
    recorder([delta(4.5)])
    last = RequestMetrics(arrival=1.0, started=2.0, first_token=4.0, last_token=6.5, finished=6.5)
    recorder([delta(6.5, finish_reason="stop", metrics=last)])
    assert sums(recorder) == {
        "time_to_first_token": (1, 3.0),
        "inter_token_latency": (2, 2.5),
        "queue_time": (1, 1.0),
        "prefill_time": (1, 2.0),
        "decode_time": (1, 2.5),
        "request_latency": (1, 5.5),
    }


def test_a_request_of_one_token() -> None:
    recorder = LatencyRecorder()
    times = RequestMetrics(arrival=1.0, started=2.0, first_token=4.0, last_token=4.0, finished=4.0)
    recorder([delta(4.0, finish_reason="length", metrics=times)])
    found = sums(recorder)
    assert found["time_to_first_token"] == found["request_latency"] == (1, 3.0)
    assert found["inter_token_latency"] == (0, 0.0)
    assert found["queue_time"] == (1, 1.0)


def test_several_tokens_of_a_step_share_its_time() -> None:
    recorder = LatencyRecorder()
    recorder([delta(1.0, tokens=3, metrics=RequestMetrics(started=0.0, first_token=1.0, last_token=1.0))])
    recorder([delta(2.0, tokens=4)])
    assert sums(recorder)["inter_token_latency"] == (6, 1.0)


def test_aborts_in_the_queue_have_neither_queue_time_nor_first_token() -> None:
    recorder = LatencyRecorder()
    recorder([delta(3.0, tokens=0, finish_reason="abort", metrics=RequestMetrics(arrival=1.0, finished=3.0))])
    found = sums(recorder)
    assert found["queue_time"][0] == found["time_to_first_token"][0] == 0
    assert found["request_latency"] == (1, 2.0)


def test_aborts_while_the_prompt_is_read_have_a_queue_time() -> None:
    recorder = LatencyRecorder()
    times = RequestMetrics(arrival=1.0, started=1.5, finished=3.0)
    recorder([delta(3.0, tokens=0, finish_reason="abort", metrics=times)])
    assert sums(recorder)["queue_time"] == (1, 0.5)


def test_ids_may_be_used_again_and_lost_requests_are_forgotten() -> None:
    recorder = LatencyRecorder()
    recorder([delta(1.0, metrics=RequestMetrics(first_token=1.0, last_token=1.0))])
    recorder([TokenDelta(request_id="a", finish_reason="error", error="a step failed")])
    recorder([delta(9.0, metrics=RequestMetrics(arrival=8.0, first_token=9.0, last_token=9.0))])
    found = sums(recorder)
    assert found["inter_token_latency"][0] == 0
    assert found["time_to_first_token"] == (2, 2.0)
