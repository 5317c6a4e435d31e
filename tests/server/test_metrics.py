"""The metrics add up, are measured in the right place, and Prometheus can read them."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.rig import Rig, answer, serving

PREFIX = "mini_vllm_"


def scrape(rig: Rig) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name without the prefix, then by label values."""
    response = rig.http.get("/metrics/prometheus")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text.endswith("\n")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation and family.name.startswith(PREFIX)
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix(PREFIX), {})[tuple(sample.labels.values())] = sample.value
    return found


def test_srv_17_latencies_are_the_engines_steps() -> None:
    with serving(delay=0.05, prefill_chunk_size=8) as rig:
        for letter in "abcde":
            rig.complete(letter * 24, max_tokens=4)
        found = scrape(rig)
    assert found["time_to_first_token_seconds_count"][()] == 5
    assert 5 * 0.15 <= found["time_to_first_token_seconds_sum"][()] < 5 * 0.3  # more on a busy machine, never less
    assert found["inter_token_latency_seconds_count"][()] == 15
    assert 15 * 0.05 <= found["inter_token_latency_seconds_sum"][()] < 15 * 0.1
    assert found["queue_time_seconds_sum"][()] < 5 * 0.04
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
        buckets = [(float(bound), count) for (bound,), count in found[f"{name}_bucket"].items()]
        assert buckets == sorted(buckets) and [count for _, count in buckets] == sorted(c for _, c in buckets)
        assert buckets[-1] == (float("inf"), found[f"{name}_count"][()])
    first = dict(found["time_to_first_token_seconds_bucket"])
    assert first[("0.1",)] == 0 and first[("1.0",)] == 5


def test_srv_17_a_wait_in_the_queue_is_queue_time() -> None:
    with serving(delay=0.02, max_num_seqs=1) as rig, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: rig.complete("a", max_tokens=10), range(2)))
        found = scrape(rig)
    assert found["queue_time_seconds_count"][()] == 2
    assert 0.15 < found["queue_time_seconds_sum"][()] < 0.5  # the second waits for ten steps of the first
    assert 0.04 <= found["prefill_time_seconds_sum"][()] < 0.15


def test_srv_18_counters_reconcile_after_a_mixed_run() -> None:
    with serving(delay=0.001, max_num_seqs=8, max_waiting=12, num_blocks=12, max_model_len=128) as rig:
        made = []

        def ask(number: int) -> int:
            body = {"prompt": f"say:number {number}", "max_tokens": 40}
            if number % 5 == 0:
                body = {"prompt": f"endless {number}", "max_tokens": 30, "n": 1 + number % 2}
            if number % 10 == 3:
                body = {"prompt": f"endless {number}", "max_tokens": 100}
                try:
                    with httpx.stream("POST", rig.url + "/v1/completions", json={**body, "stream": True}) as response:
                        next(response.iter_raw())
                except StopIteration:
                    pass
                return 0
            return httpx.post(rig.url + "/v1/completions", json=body, timeout=30).status_code

        with ThreadPoolExecutor(30) as pool:
            made = list(pool.map(ask, range(100)))
        rig.wait_until(active_requests=0, queue_depth=0)
        found, page = scrape(rig), answer(rig.http.get("/metrics"))
        finished = {reason: value for (reason,), value in found["requests_finished_total"].items()}
        assert found["requests_accepted_total"][()] == sum(finished.values())
        assert all(finished[reason] for reason in ("stop", "length", "abort")) and finished["error"] == 0
        assert found["requests_rejected_total"][()] >= made.count(429) > 0
        assert found["preemptions_total"][()] > 0
        first, between = (found[f"{n}_seconds_count"][()] for n in ("time_to_first_token", "inter_token_latency"))
        assert first + between == found["output_tokens_total"][()]
        assert finished["stop"] + finished["length"] <= first <= found["requests_accepted_total"][()]
        assert found["request_latency_seconds_count"][()] == found["requests_accepted_total"][()]
        assert found["kv_cache_blocks"][("used",)] == 0
        assert page["requests_finished_total"] == finished
        assert page["time_to_first_token_seconds"]["count"] == first
        assert page["output_tokens_total"] == found["output_tokens_total"][()]
        answers = found["http_answers_total"]
        assert set(made) == {0, 200, 429}
        for status in (200, 429):
            assert answers["POST", "/v1/completions", str(status)] >= made.count(status)


def test_srv_18_counters_never_decrease_across_a_failed_step() -> None:
    with serving() as rig:
        rig.complete()
        before = scrape(rig)
        rig.executor.fail_in = 2
        assert rig.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 9}).status_code == 500
        rig.complete()
        after = scrape(rig)
        for name, samples in before.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert all(after[name][labels] >= value for labels, value in samples.items()), name
        assert after["requests_finished_total"][("error",)] == 1
        assert after["requests_accepted_total"][()] == sum(after["requests_finished_total"].values()) == 3


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("text/html,*/*;q=0.8", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "text/plain"),
        ("text/plain", "text/plain"),
    ],
)
def test_metrics_are_what_the_client_accepts(rig: Rig, accept: str | None, kind: str) -> None:
    response = rig.http.get("/metrics", headers={"accept": accept or ""})
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == kind


def test_scrapers_that_look_elsewhere_find_the_same(rig: Rig) -> None:
    names = [
        {line.split("{")[0].split()[0] for line in rig.http.get(path).text.splitlines() if not line.startswith("#")}
        for path in ("/metrics/prometheus", "/prometheus/metrics")
    ]
    assert names[0] == names[1] and len(names[0]) > 20


def test_a_scrape_is_quick_while_tokens_are_made() -> None:
    with serving(delay=0.002) as rig, ThreadPoolExecutor(16) as pool:
        running = [pool.submit(rig.complete, "a", max_tokens=300) for _ in range(16)]
        rig.wait_until(active_requests=16)
        start = time.monotonic()
        scrape(rig)
        assert time.monotonic() - start < 1
        assert not all(future.done() for future in running)


def test_unknown_paths_and_methods_are_one_label_each(rig: Rig) -> None:
    for number in range(3):
        rig.http.request(f"FROB{number}", f"/no/such/{number}")
    labels = scrape(rig)["http_answers_total"]
    assert ("other", "other", "404") in labels
    assert not any("FROB" in method or "such" in route for method, route, _ in labels)


def test_promtool_has_nothing_to_say(rig: Rig) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    text = rig.http.get("/metrics/prometheus").text
    ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
