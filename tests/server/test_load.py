"""Many clients at once: they meet in one batch, each gets one answer, and health stays prompt."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from server.rig import serving


def test_thirty_two_clients_meet_in_one_batch() -> None:
    with serving(delay=0.005) as rig, httpx.Client(base_url=rig.url, timeout=30, limits=httpx.Limits()) as client:
        largest, done = 0, threading.Event()

        def watch() -> None:
            nonlocal largest
            while not done.is_set():
                largest = max(largest, rig.stats()["batch_size"])
                time.sleep(0.002)

        def ask(number: int) -> str:
            body = {"prompt": f"say:number {number} " + "x" * 60, "max_tokens": 80}
            return client.post("/v1/completions", json=body).json()["choices"][0]["text"]

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(32) as pool:
            texts = list(pool.map(ask, range(32)))
        done.set()
        watcher.join()
        assert texts == [f"number {number} " + "x" * 60 for number in range(32)]
        assert largest == rig.executor.largest_batch == 32


def test_srv_13_past_the_queue_limit_every_request_still_gets_one_answer() -> None:
    with serving(delay=0.001, max_num_seqs=4, max_waiting=8) as rig:
        limits = httpx.Limits(max_connections=100)
        with httpx.Client(base_url=rig.url, timeout=30, limits=limits) as client, ThreadPoolExecutor(100) as pool:
            ask = lambda i: client.post("/v1/completions", json={"prompt": f"say:{i}"})  # noqa: E731
            responses = list(pool.map(ask, range(500)))
        by_status = {status: [r for r in responses if r.status_code == status] for status in (200, 429)}
        assert len(by_status[200]) + len(by_status[429]) == 500
        assert by_status[200] and by_status[429]
        assert rig.stats()["requests_finished_stop"] == len(by_status[200])
        assert rig.http.get("/health").status_code == 200


def test_health_is_prompt_while_long_prompts_are_read() -> None:
    with serving(max_model_len=200_000, num_blocks=20_000) as rig:
        body = json.dumps({"prompt": "a " * 50_000, "max_tokens": 1}).encode()
        asker = threading.Thread(target=lambda: [rig.http.post("/v1/completions", content=body) for _ in range(20)])
        asker.start()
        waits = []
        with httpx.Client(base_url=rig.url) as client:
            while asker.is_alive():
                start = time.monotonic()
                assert client.get("/health").status_code == 200
                waits.append(time.monotonic() - start)
                time.sleep(0.005)
        asker.join()
        assert len(waits) > 10
        assert sorted(waits)[int(len(waits) * 0.9)] < 0.25
