"""An engine that hangs or dies is noticed, said, and left."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server.rig import error, serving

from mini_vllm.config import ServerConfig
from mini_vllm.server.watch import StallWatch


class Moving:
    """A marker and a clock, set by hand."""

    def __init__(self) -> None:
        self.marker: int | None = None
        self.now = 0.0
        self.watch = StallWatch(lambda: self.marker, limit=5.0, clock=lambda: self.now)

    def at(self, now: float, marker: int | None) -> bool:
        """Whether it is stalled then."""
        self.now, self.marker = now, marker
        return self.watch.is_stalled()


def test_srv_10_only_work_that_does_not_move_is_a_stall() -> None:
    moving = Moving()
    assert not any(moving.at(now, None) for now in (0.0, 100.0))  # idle is no stall
    assert not any(moving.at(now, int(now)) for now in range(101, 160))  # nor is a long step that moves
    assert not moving.at(200.0, 7)
    assert not moving.at(204.9, 7)
    assert moving.at(205.0, 7) and moving.at(300.0, 7)
    assert not moving.at(301.0, 8)
    assert not moving.at(302.0, None)
    assert not moving.at(310.0, 8)  # the time between the looks was not spent at it


@pytest.mark.parametrize("counts", [False, True])
def test_srv_10_a_hang_is_a_503_and_nobody_waits_for_ever(counts: bool) -> None:
    with serving(server=ServerConfig(stall_timeout=0.5)) as rig, ThreadPoolExecutor(3) as pool:
        rig.complete()
        if counts:
            rig.executor.progress = lambda: 42
        rig.executor.hang = threading.Event()
        try:
            asked = [
                pool.submit(httpx.post, rig.url + "/v1/completions", json={"prompt": "a", "stream": stream}, timeout=20)
                for stream in (False, True, False)
            ]
            answers = [each.result() for each in asked]
            assert [answer.status_code for answer in answers] == [503] * 3
            assert "has hung" in error(answers[0])["message"]
            for path in ("/health", "/ready"):
                assert (rig.http.get(path).status_code, rig.http.get(path).json()["status"]) == (
                    503,
                    "the engine is dead",
                )
            assert rig.http.post("/v1/completions", json={"prompt": "a"}).status_code == 503
            assert rig.app.state.service.hung.is_set()
            assert rig.http.get("/metrics").status_code == rig.http.get("/stats").status_code == 200
        finally:
            rig.executor.hang.set()


def test_srv_10_operations_that_move_within_a_long_step_are_no_stall() -> None:
    with serving(server=ServerConfig(stall_timeout=0.5)) as rig, ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        rig.executor.progress = lambda: int((time.monotonic() - begun) * 20)
        rig.executor.hang = threading.Event()
        asked = pool.submit(rig.complete)
        time.sleep(2.5)
        assert rig.http.get("/health").status_code == 200
        rig.executor.hang.set()
        assert asked.result()["choices"][0]["text"] == "hello"


def test_srv_10_an_engine_that_cannot_start_afresh_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as rig:
        rig.executor.fail_in = 1

        def refuse() -> None:
            raise RuntimeError("no memory")

        monkeypatch.setattr(rig.executor, "reset", refuse)
        assert rig.http.post("/v1/completions", json={"prompt": "a"}).status_code == 503
        assert rig.http.get("/health").status_code == 503
