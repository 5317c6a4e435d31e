"""The default model behind the server, with guesses: the same answers, an opt-out, and the figures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.rig import Rig, serving_model

from mini_vllm.engine.async_llm import AsyncLLM

NAME = "smollm2-135m"
TEXT = "seven grey geese go past the old mill by the river at dawn today"
COPY = f"Say: {TEXT}.\nSay: {TEXT}.\nSay: seven grey"


def serve(default_model: Path, **options: object) -> Iterator[Rig]:
    llm = AsyncLLM(str(default_model), executor="native", max_model_len=256, num_blocks=128, max_num_seqs=8, **options)
    with serving_model(llm, NAME) as rig:
        yield rig


@pytest.fixture(scope="module")
def plain(default_model: Path) -> Iterator[Rig]:
    yield from serve(default_model)


@pytest.fixture(scope="module")
def guessing(default_model: Path) -> Iterator[Rig]:
    for rig in serve(default_model, speculative="ngram"):
        rig.llm.engine.core.executor.runner.drafting._adaptive = False
        yield rig


def counter(rig: Rig, name: str) -> float:
    """The sum over the labels of one counter."""
    lines = rig.http.get("/metrics/prometheus").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"mini_vllm_{name}"))


def test_figures_and_the_opt_out(guessing: Rig) -> None:
    before = {name: counter(guessing, name) for name in ("drafts_proposed_total", "drafts_accepted_total")}
    free = guessing.complete(COPY, temperature=0, max_tokens=12)
    figures = free["mini_vllm"]
    assert figures["target_forwards"] < 12 and figures["drafts_accepted"] >= 12 - figures["target_forwards"]
    assert counter(guessing, "drafts_proposed_total") - before["drafts_proposed_total"] == figures["drafts_proposed"]
    assert counter(guessing, "drafts_accepted_total") - before["drafts_accepted_total"] == figures["drafts_accepted"]
    out = guessing.complete(COPY, temperature=0, max_tokens=12, speculation=False)
    assert out["mini_vllm"]["target_forwards"] == 12 and out["mini_vllm"]["drafts_proposed"] == 0
    assert (
        out["choices"][0]["text"]
        == free["choices"][0]["text"]
        == " geese go past the old mill by the river at dawn today"
    )


def test_spc_09_json_over_http_with_guesses(plain: Rig, guessing: Rig) -> None:
    body = {
        "messages": [{"role": "user", "content": "Name a fruit and its colour, as JSON."}],
        "response_format": {"type": "json_object"},
        "max_tokens": 60,
        "temperature": 0,
    }
    answers = [rig.http.post("/v1/chat/completions", json=body) for rig in (plain, guessing)]
    assert [answer.status_code for answer in answers] == [200, 200]
    [first], [second] = (answer.json()["choices"] for answer in answers)
    assert first["message"] == second["message"] and first["finish_reason"] == second["finish_reason"]
    if second["finish_reason"] == "stop":
        assert isinstance(json.loads(second["message"]["content"]), dict)
    else:
        assert second["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0},
        {"temperature": 0, "stop": ["river"]},
        {"temperature": 0, "stop": ["mill by"], "include_stop_str_in_output": True},
        {"temperature": 0.8, "seed": 4, "n": 3, "logprobs": 2},
        {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.8, "min_tokens": 10, "logit_bias": {"30": -100}},
        {"temperature": 0, "max_tokens": 200, "ignore_eos": True},
        {"temperature": 0, "echo": True, "logprobs": 1},
    ],
)
def test_streams_and_answers_are_those_of_a_server_without_guesses(plain: Rig, guessing: Rig, more: dict) -> None:
    asked = {"max_tokens": 30, **more}
    expected, found = (rig.complete(COPY, **asked) for rig in (plain, guessing))
    assert (
        found["choices"] == expected["choices"] and found["usage"]["total_tokens"] == expected["usage"]["total_tokens"]
    )
    events = guessing.events("/v1/completions", {"prompt": COPY, **asked})
    for choice in expected["choices"]:
        pieces = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
