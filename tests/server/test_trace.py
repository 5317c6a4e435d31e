"""GET /trace: the scheduler's last steps, and what `mini-vllm explain` makes of them."""

from server.rig import Rig

from mini_vllm.scheduling.explain import explain, find
from mini_vllm.scheduling.export import from_jsonl


def test_the_trace_of_a_server_explains_a_request_by_the_id_of_its_answer(rig: Rig) -> None:
    answer = rig.complete("say:hello there", max_tokens=5)
    response = rig.http.get("/trace")
    assert response.headers["content-type"] == "application/x-ndjson"
    requests, steps = from_jsonl(response.text.splitlines())
    (found,) = find(requests, answer["id"])
    assert found.num_prompt == answer["usage"]["prompt_tokens"] and found.max_tokens == 5
    assert found.key.startswith("address ")
    text = explain(found, requests, steps)
    assert "until it ended (length)" in text and "Writing: 4 steps" in text
    assert "hello" not in response.text, "a trace holds no text"


def test_the_chrome_form_and_an_unknown_one(rig: Rig) -> None:
    rig.complete("say:hello", max_tokens=3)
    events = rig.http.get("/trace", params={"format": "chrome"}).json()["traceEvents"]
    assert {"X", "M", "C"} <= {event["ph"] for event in events}
    response = rig.http.get("/trace", params={"format": "xml"})
    assert response.status_code == 400 and "choose jsonl or chrome" in response.json()["error"]["message"]


def test_a_deadline_and_a_client_reach_the_scheduler(rig: Rig) -> None:
    from mini_vllm.server.limits import Deadline, Terms

    terms = Terms(deadline=Deadline(12.5, 1.0, "deadline_ms"), client="key 0")
    assert (terms.standing.key, terms.standing.deadline) == ("key 0", 12.5)
