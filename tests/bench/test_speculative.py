"""The speculative bench: its prompts, its guard against repetition, and a short run on the real model."""

import json

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.bench import speculative
from mini_vllm.bench.figures import Figure, joined, render
from mini_vllm.errors import ConfigError


def test_distinct_share():
    assert speculative.distinct_share([1, 2, 3]) == 1.0
    assert speculative.distinct_share([1, 2, 3, 4, 5]) == 1.0
    assert speculative.distinct_share([1, 1, 1, 1, 1, 1]) == pytest.approx(1 / 3)


def test_prompts_are_there_and_named():
    prompts = json.loads(speculative.PROMPTS.read_text())
    assert len(prompts["copy"]) >= 4 and len(prompts["free"]) >= 4
    assert all(entry["name"] and len(entry["prompt"]) > 50 for part in prompts.values() for entry in part)


def test_a_comparison_reports_what_it_saw(default_model):
    text = "seven grey geese go past the old mill by the river at dawn today"
    with LLM(default_model, **{**speculative.ENGINE, "num_blocks": 64}, speculative="ngram") as llm:
        prompt = llm.tokenizer.encode(f"Say: {text}.\nSay: {text}.\nSay: seven grey")
        params = SamplingParams(temperature=0.0, max_tokens=12)
        work = speculative.Work("copying", (prompt,), params, 1, 0.5)
        figure = speculative._compare(llm, work, "ngram q4_1", pairs=2)
    assert (figure.what, figure.form, figure.unit, figure.goal) == ("ngram over off, copying", "q4_1", "x", 0.5)
    assert figure.value > 0 and "guesses stood" in figure.note and "tokens a forward" in figure.note


def test_prompts_go_round():
    work = speculative.Work("copying", ([1], [2], [3]), SamplingParams(), 2)
    assert [work.part(number) for number in range(3)] == [[[1], [2]], [[3], [1]], [[2], [3]]]


def test_unknown_parts_are_refused():
    with pytest.raises(ConfigError, match=r"only has magic; choose of ngram, suffix, self, draft, bfloat16, q4_1"):
        speculative.measure(quick=True, threads=1, only=["ngram", "magic"])


def test_threads_are_those_asked_for(monkeypatch, default_model):
    found = []
    monkeypatch.setattr(
        speculative, "_works", lambda llm, prompts: found.append(llm.engine.description["threads"]) or []
    )
    record = speculative.measure(quick=True, threads=1, only=["ngram", "q4_1"])
    assert found == ["1"] and record["machine"]["threads"] == 1 and record["figures"] == []


def test_parts_make_one_record():
    def record(cores: int, *entries: tuple[str, str, float]) -> dict:
        rows = [Figure(what=what, form=form, value=value, unit="x").as_json() for what, form, value in entries]
        return {"machine": {"cores": cores}, "figures": rows}

    old = record(1, ("a", "q4_1", 1.0), ("a", "bfloat16", 2.0), ("b", "q4_1", 3.0))
    found = joined(old, record(2, ("a", "bfloat16", 2.5), ("c", "q4_1", 4.0)))
    assert [(row["what"], row["form"], row["value"]) for row in found["figures"]] == [
        ("a", "q4_1", 1.0),
        ("a", "bfloat16", 2.5),
        ("b", "q4_1", 3.0),
        ("c", "q4_1", 4.0),
    ]
    assert found["machine"] == {"cores": 2} and "| c" in render(found)
