"""Many prompts from a file, out as JSONL or panels."""

import json

import pytest

from mini_vllm.cli.batch_input import BatchItem, read_batch
from mini_vllm.errors import InvalidParameterError

MIXED = [
    "The fox",
    [5, 6, 7],
    {"id": "a", "prompt": "The dog", "max_tokens": 3},
    {"messages": [{"role": "user", "content": "Hi"}], "max_new_tokens": 2},
    {"at": 0.5, "text": "timed", "temperature": 0.5, "seed": 3},
]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_json_list_comes_out_as_jsonl_in_order(run, model, tmp_path) -> None:
    source = tmp_path / "prompts.json"
    source.write_text(json.dumps(MIXED))
    ran = run("batch", model, source, "-n", 5, "--ignore-eos")
    records = lines(ran.out)
    assert ran.code == 0
    assert [record["index"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["id"] for record in records] == ["0", "1", "a", "3", "4"]
    assert [record["num_tokens"] for record in records] == [5, 5, 3, 2, 5]
    assert "prompts: 5 | failed: 0 | tokens: 20 |" in ran.err
    alone = run("generate", model, "The fox", "-n", 5, "--ignore-eos")
    assert records[0]["text"] + "\n" == alone.out


def test_the_examples_are_good_input(run, model) -> None:
    from pathlib import Path

    examples = Path(__file__).parents[2] / "examples"
    for name in ("prompts.json", "traffic.json"):
        ran = run("batch", model, "--input", examples / name, "-n", 2)
        assert (ran.code, len(lines(ran.out))) == (0, 4 if name == "prompts.json" else 8)


def test_jsonl_text_and_standard_input(run, model, tmp_path) -> None:
    jsonl, text = tmp_path / "p.jsonl", tmp_path / "p.txt"
    jsonl.write_text('{"prompt": "The fox"}\n\n"The dog"\n')
    text.write_text("The fox\n\nThe dog\n")
    found = [run("batch", "-m", model, path, "-n", 4).out for path in (jsonl, text)]
    found.append(run("batch", "-m", model, "-n", 4, stdin="The fox\nThe dog\n").out)
    found.append(run("batch", "-m", model, "-", "-n", 4, stdin='["The fox", "The dog"]').out)
    assert len({tuple(record["text"] for record in lines(one)) for one in found}) == 1
    assert all(len(lines(one)) == 2 for one in found)


def test_one_bad_prompt_does_not_stop_the_others(run, model, tmp_path) -> None:
    source = tmp_path / "p.json"
    source.write_text(json.dumps(["ok", "x" * 4000, {"prompt": "ok", "stop_token_ids": [10**6]}, "fine"]))
    ran = run("batch", model, source, "-n", 2)
    records = lines(ran.out)
    assert ran.code == 2
    assert ["error" in record for record in records] == [False, True, True, False]
    assert "maximum context length" in records[1]["error"]
    assert "failed: 2" in ran.err


def test_output_file_and_panels(run, model, tmp_path) -> None:
    source, target = tmp_path / "p.txt", tmp_path / "out.jsonl"
    source.write_text("日本語 the fox\n")
    ran = run("batch", model, source, "-o", target, "-n", 3, "--ignore-eos")
    assert (ran.code, ran.out) == (0, "")
    (record,) = lines(target.read_text())
    assert record["prompt"] == "日本語 the fox"
    assert "日本語" in target.read_text()
    panels = run("batch", model, source, "--format", "panels", "-n", 3, "--ignore-eos")
    assert panels.out.startswith(f"--- 0: 日本語 the fox\n{record['text']}\n(")
    assert "+ 3 tokens" in panels.out
    refused = run("batch", model, source, "-o", tmp_path / "no" / "dir.jsonl")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_several_completions_and_concurrency(run, model, tmp_path) -> None:
    source = tmp_path / "p.txt"
    source.write_text("one\ntwo\nthree\n")
    flags = ["-n", 4, "--n", 2, "--temperature", 1, "--seed", 2, "--ignore-eos"]
    together = lines(run("batch", model, source, *flags).out)
    in_turn = lines(run("batch", model, source, *flags, "--concurrency", 1).out)
    assert [record["texts"] for record in together] == [record["texts"] for record in in_turn]
    assert all(len(record["texts"]) == 2 for record in together)


def test_openai_batch_lines_are_understood() -> None:
    line = json.dumps(
        {
            "custom_id": "r-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 7},
        }
    )
    (item,) = read_batch("b.jsonl", line)
    assert item == BatchItem("r-1", messages=[{"role": "user", "content": "Hi"}], sampling={"max_tokens": 7})
    assert read_batch("x.json", '{"prompts": ["a"]}') == [BatchItem("0", "a")]
    assert read_batch("x.json", '{"prompt": "a"}') == [BatchItem("0", "a")]


@pytest.mark.parametrize(
    ("source", "text", "says"),
    [
        ("p.json", "[", "p.json is not JSON"),
        ("p.jsonl", '{"prompt": "a"}\n{', "p.jsonl line 2 is not JSON"),
        ("p.json", "7", "holds int"),
        ("p.json", "[]", "has no prompts"),
        ("p.txt", "\n\n", "has no prompts"),
        ("p.json", "[3]", "entry 0 is int"),
        ("p.json", '["a", {}]', "entry 1 has no prompt"),
        ("p.json", '[{"prompt": []}]', "entry 0 has no prompt"),
        ("p.json", '[{"prompt": "a", "temprature": 1}]', "'temprature'; did you mean temperature"),
        ("p.json", '[{"prompt": "a", "temperature": -1}]', "entry 0: temperature is -1"),
        ("p.json", '[{"prompt": "a", "max_tokens": "many"}]', "entry 0: max_tokens is 'many'"),
    ],
)
def test_bad_input_names_the_entry(source, text, says) -> None:
    with pytest.raises(InvalidParameterError, match=says):
        read_batch(source, text)
