"""The default model in float32 equals transformers: 20 prompts, 128 greedy tokens each, however they are run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams

REFERENCES = json.loads((Path(__file__).parent / "references" / "smollm2_greedy.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = REFERENCES["rows"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(default_model: str) -> Iterator[LLM]:
    """The default model, dequantised to float32, on the native library."""
    with LLM(default_model, dtype="float32", executor="native", max_model_len=512) as llm:
        yield llm


def token_ids(llm: LLM, rows: list[dict[str, Any]]) -> list[list[int]]:
    """What the engine makes of the rows' prompts."""
    return [output.outputs[0].token_ids for output in llm.generate([row["prompt_ids"] for row in rows], GREEDY)]


@pytest.mark.slow
def test_twenty_prompts_together_equal_transformers(llm: LLM) -> None:
    outputs = token_ids(llm, ROWS)
    for row, output in zip(ROWS, outputs, strict=True):
        assert output == row["output_ids"], row["prompt"]


@pytest.mark.slow
def test_a_prompt_alone_equals_transformers(llm: LLM) -> None:
    assert token_ids(llm, ROWS[1:2]) == [ROWS[1]["output_ids"]]


def test_the_references_are_worth_comparing_with() -> None:
    assert len(ROWS) == 20
    assert all(len(row["output_ids"]) == 128 for row in ROWS)
    assert sum(len(set(row["output_ids"])) >= 10 for row in ROWS) >= 15, "a small model repeats itself, but not always"
    assert all(row["gap"] > 1e-3 for row in ROWS), "a near tie would make the comparison a matter of luck"


def test_the_tokenizer_reads_the_prompts_as_transformers_does(llm: LLM) -> None:
    for row in ROWS:
        assert llm.tokenizer.encode(row["prompt"], add_special_tokens=False) == row["prompt_ids"]
