"""Structured output through the server: what comes out fits, whatever the model would rather say."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.puppet import puppet_server
from server.rig import Rig, answer, error


@pytest.fixture(scope="module")
def puppet() -> Iterator[Rig]:
    with puppet_server() as running:
        yield running


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}


def schema(value, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value, **more}}


def ask(rig: Rig, text: str, **fields):
    fields.setdefault("temperature", 0)
    choice = rig.chat(f"say:{text}", **fields)["choices"][0]
    events = rig.events("/v1/chat/completions", {"messages": [{"role": "user", "content": f"say:{text}"}], **fields})
    parts = [event["choices"][0] for event in events]
    assert "".join(part["delta"].get("content") or "" for part in parts) == choice["message"]["content"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    return choice["message"]["content"], choice["finish_reason"]


def test_what_fits_is_left_alone_and_what_does_not_is_made_to_fit(puppet: Rig) -> None:
    good = '{"name": "Bob", "age": 30}'
    assert ask(puppet, good, response_format=schema(PERSON), max_tokens=100) == (good, "stop")
    text, finish = ask(puppet, "Sure! Bob is 30.", response_format=schema(PERSON), max_tokens=200)
    assert finish == "stop" and set(json.loads(text)) == {"name", "age"}
    assert ask(puppet, good, response_format={"type": "json_object"}, max_tokens=100) == (good, "stop")
    assert ask(puppet, good, response_format={"type": "text"}, max_tokens=100) == (good, "stop")


def test_sto_01_white_space_is_bounded(puppet: Rig) -> None:
    for wanted in (schema(PERSON), {"type": "json_object"}):
        for blank in ("\n", " ", "\n\n"):
            text, finish = ask(puppet, blank + "~", response_format=wanted, max_tokens=200)
            assert len(text) - len(text.lstrip()) == 0
            if finish == "stop":
                json.loads(text)
            runs = [run for part in text.split('"')[0::2] for run in re.findall(r"\s+", part)]
            assert runs and max(map(len, runs)) <= 8, text
    text, finish = ask(puppet, "\n~", response_format=schema({"type": "array", "items": {"const": 1}, "maxItems": 2}))
    assert finish == "stop" and json.loads(text) in ([], [1], [1, 1])


def test_sto_02_nothing_follows_the_closing_brace(puppet: Rig) -> None:
    done = '{"name": "B", "age": 3}'
    for tail in (" ~", "\n\n\n", " and so on", "}"):
        text, finish = ask(puppet, done + tail, response_format=schema(PERSON), max_tokens=300)
        assert (text, finish) == (done, "stop")
    body = puppet.chat("say:" + done, response_format=schema(PERSON), max_tokens=len(done), temperature=0)
    assert body["choices"][0]["finish_reason"] == "stop"  # complete with its last token
    assert body["usage"]["completion_tokens"] == len(done)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "objet"},
        [],
        "str",
        {"properties": 5},
        None,
        {"type": "foo"},
        {"$ref": "#/nope"},
        {"$ref": "#"},
        {"$ref": "http://example.com/x"},
        {"type": "integer", "minimum": 3, "maximum": 1},
        {"type": "string", "pattern": "(a"},
        {"type": "string", "pattern": "(?=a)b"},
        {"enum": []},
        False,
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_sto_04_a_bad_schema_is_a_bad_request(puppet: Rig, bad, stream: bool) -> None:
    messages = [{"role": "user", "content": "say:x"}]
    body = {"messages": messages, "response_format": schema(bad), "stream": stream, "max_tokens": 5}
    response = puppet.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert error(response)["param"] == "response_format"
    assert puppet.chat("say:fine", temperature=0)["choices"][0]["message"]["content"] == "fine"


def test_sto_04_strict_names_what_cannot_be_enforced_and_without_it_that_is_left_out(puppet: Rig) -> None:
    value = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    messages = [{"role": "user", "content": "say:[1, 1]"}]
    body = {"messages": messages, "temperature": 0, "response_format": schema(value, strict=True)}
    response = puppet.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and "uniqueItems" in error(response)["message"]
    assert ask(puppet, "[1, 1]", response_format=schema(value)) == ("[1, 1]", "stop")


def test_sto_07_text_beyond_ascii_is_written_as_it_is(puppet: Rig) -> None:
    moods = ["开心", "难过", "Sjöfart", "\U0001f600", 'a"b', "x\\y", "é"]
    wanted = schema({"type": "object", "properties": {"mood": {"enum": moods}}, "required": ["mood"]})
    for mood in moods:
        text, finish = ask(
            puppet, json.dumps({"mood": mood}, ensure_ascii=False), response_format=wanted, max_tokens=60
        )
        assert finish == "stop" and json.loads(text) == {"mood": mood}
        if mood not in ('a"b', "x\\y"):
            assert mood in text
    assert json.loads(ask(puppet, "nothing", response_format=wanted, max_tokens=60)[0])["mood"] in moods


def test_sto_09_schemas_and_free_text_side_by_side_do_not_mix(puppet: Rig) -> None:
    a = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    b = {"type": "array", "items": {"enum": ["b"]}, "minItems": 2, "maxItems": 2}
    plain = "a free answer, {not} [json]"

    def one(number: int) -> None:
        fields = [{"response_format": schema(a)}, {"response_format": schema(b)}, {}][number % 3]
        said = ['{"a": 17}', '["b", "b"]', plain][number % 3 if number % 2 else (number + 1) % 3]
        content = puppet.chat(f"say:{said}", temperature=0, max_tokens=60, **fields)["choices"][0]["message"]["content"]
        match number % 3:
            case 0:
                assert list(json.loads(content)) == ["a"]
            case 1:
                assert json.loads(content) == ["b", "b"]
            case _:
                assert content == said

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(200)))
    assert puppet.chat("say:" + plain, temperature=0)["choices"][0]["message"]["content"] == plain
    puppet.wait_until(active_requests=0)


def test_sto_10_a_shared_grammar_has_a_cursor_for_each(puppet: Rig) -> None:
    def one(digit: int):
        body = puppet.complete(f"say:{digit}", guided_regex="[0-9]{8}", n=4, temperature=1.0, seed=digit)
        return [choice["text"] for choice in body["choices"]]

    with ThreadPoolExecutor(4) as pool:
        for texts in pool.map(one, range(8)):
            assert len(texts) == 4 and all(len(text) == 8 and text.isdigit() for text in texts)


def test_completions_take_them_too(puppet: Rig) -> None:
    prompt = "say:maybe<|im_end|><|im_start|>assistant\n"
    for fields, wanted in [
        ({"choice": ["yes", "no", "<|im_end|>"]}, {"yes", "no", "<|im_end|>"}),
        ({"guided_choice": ["mayor", "may"]}, {"mayor", "may"}),
        ({"structured_outputs": {"choice": ["a.b", "a|b"]}}, {"a.b", "a|b"}),
        ({"structured_outputs": {"json": '{"const": 7}'}}, {"7"}),
        ({"json": {"const": 7}}, {"7"}),
        ({"grammar": 'start: "x" /[yz]/'}, {"xy", "xz"}),
        ({"guided_grammar": 'root ::= "x" [yz]'}, {"xy", "xz"}),
        ({"regex": "m[a-c]y"}, {"may"}),
        ({"regex": "^(on|off)$"}, {"on", "off"}),
    ]:
        for more in ({}, {"min_tokens": 9}, {"ignore_eos": True}):
            choice = puppet.complete(prompt, temperature=0, max_tokens=40, **fields, **more)["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert choice["text"] in wanted, (fields, choice)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(a"},
        {"regex": r"(a)\1"},
        {"grammar": "start: nothing"},
        {"grammar": "root ::= ("},
        {"regex": "a" * 200_001},
        {"json": {"type": "string"}, "regex": "a"},
        {"json": "{"},
        {"regex": "(a{1000}){1000}"},
    ],
)
def test_what_is_no_grammar_is_refused(puppet: Rig, fields) -> None:
    response = puppet.http.post("/v1/completions", json={"prompt": "x", **fields})
    assert response.status_code == 400, response.text
    assert error(response)["param"] in fields


def test_max_tokens_cuts_and_says_so(puppet: Rig) -> None:
    good = '{"name": "Bob", "age": 30}'
    for limit in range(1, len(good) + 1):
        text, finish = ask(puppet, good, response_format=schema(PERSON), max_tokens=limit)
        assert good.startswith(text)
        assert finish == ("stop" if text == good else "length")


def test_a_grammar_survives_preemption() -> None:
    def run(rig: Rig):
        def one(number: int):
            said = json.dumps({"name": "n" * (8 + number % 5), "age": number})
            body = rig.chat(f"say:{said}", temperature=0, max_tokens=60, response_format=schema(PERSON))
            return said, body["choices"][0]["message"]["content"]

        with ThreadPoolExecutor(6) as pool:
            pairs = list(pool.map(one, range(12)))
        assert all(said == content for said, content in pairs)
        return rig.stats()["preemptions"]

    with puppet_server(num_blocks=24, max_num_seqs=6, enable_prefix_caching=False) as tight:
        assert run(tight) > 0


def test_demands_that_contradict_each_other_are_the_requests_fault(puppet: Rig) -> None:
    body = {"prompt": "say:x", "max_tokens": 9, "temperature": 0, "choice": ["yes", "no"]}
    for more in ({"allowed_token_ids": [ord("x")]}, {"bad_token_ids": [ord("y"), ord("n")]}):
        refused = puppet.http.post("/v1/completions", json={**body, **more})
        assert (refused.status_code, error(refused)["param"]) == (400, "structured_outputs")
        assert "leaves no token" in error(refused)["message"]
    assert answer(puppet.http.post("/v1/completions", json=body))["choices"][0]["text"] in ("yes", "no")
