"""Every field of OpenAI's request schemas is supported, documented as ignored, or rejected with a reason."""

import re
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from server.rig import MODEL, Rig, error

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol import fields
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.completions import CompletionRequest
from mini_vllm.server.protocol.embeddings import EmbeddingRequest
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.protocol.responses import ResponsesRequest

SCHEMAS = {
    "/v1/completions": completion_create_params,
    "/v1/chat/completions": chat_create_params,
    "/v1/responses": response_create_params,
    "/v1/embeddings": embedding_create_params,
}
ENDPOINTS = [
    (kind, SCHEMAS[url], ignored, rejected)
    for url, (kind, ignored, rejected) in fields.ENDPOINTS.items()
    if url in SCHEMAS
]

NEEDED = {
    CompletionRequest: b'"prompt": "a"',
    ChatRequest: b'"messages": []',
    ResponsesRequest: b'"input": "a"',
    EmbeddingRequest: b'"input": "a"',
}


def specified(params: ModuleType) -> set[str]:
    """The names of all fields of a request, as the SDK declares them."""
    kinds = [kind for name, kind in vars(params).items() if "CreateParams" in name and hasattr(kind, "__total__")]
    return {name for kind in kinds for name in get_type_hints(kind)}


@pytest.mark.parametrize(("kind", "params", "ignored", "rejected"), ENDPOINTS)
def test_no_field_of_the_specification_is_forgotten(kind, params, ignored, rejected) -> None:
    names = specified(params)
    assert len(names) >= 5
    assert names - set(kind.__struct_fields__) - set(ignored) - set(rejected) == set()


@pytest.mark.parametrize(("kind", "params", "ignored", "rejected"), ENDPOINTS)
def test_no_field_has_two_fates(kind, params, ignored, rejected) -> None:
    supported = set(kind.__struct_fields__)
    assert not supported & set(ignored)
    assert not supported & set(rejected)
    assert not set(ignored) & set(rejected)


@pytest.mark.parametrize(("kind", "params", "ignored", "rejected"), ENDPOINTS)
def test_rejected_fields_give_their_reason(kind, params, ignored, rejected) -> None:
    reader = BodyReader(kind, ignored=ignored, rejected=rejected)
    for name, reason in rejected.items():
        with pytest.raises(InvalidParameterError, match=reason[:20]) as caught:
            reader.decode(b'{%s, "%s": 1}' % (NEEDED[kind], name.encode()))
        assert caught.value.param == name
        for nothing in (b"null", b"false", b"[]", b"{}", b'""'):
            reader.decode(b'{%s, "%s": %s}' % (NEEDED[kind], name.encode(), nothing))


def test_unknown_fields_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = BodyReader(CompletionRequest, ignored={"user": ""}, rejected={})
    with caplog.at_level("INFO"):
        for _ in range(3):
            reader.decode(b'{"prompt": "a", "user": "u", "novelty": 1}')
        for number in range(200):
            reader.decode(b'{"field%d": 1}' % number)
    assert [record.message for record in caplog.records if "novelty" in record.message] == [
        "ignoring the unknown request field 'novelty', now and later"
    ]
    assert len(caplog.records) == 100


@pytest.mark.parametrize("half", ["\\ud800", "x\\uDBFFy", "\\udc00", "\\\\\\ud83d\\n"])
def test_half_a_surrogate_pair_is_named(half: str) -> None:
    reader = BodyReader(CompletionRequest, ignored={}, rejected={})
    with pytest.raises(InvalidParameterError, match="half of a surrogate pair") as caught:
        reader.decode(b'{"prompt": "%s"}' % half.encode())
    assert caught.value.code == "invalid_json"
    assert reader.decode(b'{"prompt": "\\ud83d\\ude00 \\\\ud800"}').prompt == "\U0001f600 \\ud800"
    with pytest.raises(InvalidParameterError, match="not valid JSON"):
        reader.decode(b'{"prompt": "\\\\ud800')


TOOL = {"name": "f", "parameters": {"type": "object", "properties": {}}}
BODIES = {
    "/v1/completions": {"prompt": "say:hi", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "say:hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "say:hi", "max_output_tokens": 4},
    "/v1/embeddings": {"input": "say:hi"},
}
SAMPLES = {  # a value that a client may send; by URL where that matters
    "model": MODEL,
    "n": 1,
    "temperature": 1.5,
    "top_p": 0.5,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "best_of": 1,
    "suffix": "",
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "logprobs": {"/v1/completions": 2, "": True},
    "presence_penalty": -2,
    "frequency_penalty": 2,
    "echo": True,
    "seed": 7,
    "user": "u",
    "store": False,
    "max_tokens": 3,
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "functions": [],
    "function_call": "none",
    "modalities": ["text"],
    "tools": {"/v1/responses": [{"type": "function", **TOOL}], "": [{"type": "function", "function": TOOL}]},
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "text": {"format": {"type": "text"}},
    "include": [],
    "parallel_tool_calls": True,
    "max_completion_tokens": 3,
    "max_output_tokens": 3,
    "background": False,
    "truncation": "disabled",
    "instructions": "Be nice.",
    "encoding_format": "base64",
    "dimensions": 2,
    "stream": True,
}


@pytest.mark.parametrize("url", list(SCHEMAS))
def test_each_field_of_the_specification_has_the_fate_that_is_documented(rig: Rig, url: str) -> None:
    kind, ignored, rejected = fields.ENDPOINTS[url]
    page = (Path(__file__).parents[2] / "docs" / "reference" / "requests.md").read_text()
    _, _, section = page.partition(f"## POST {url}\n")
    section = section.partition("\n## ")[0]
    for name in sorted(specified(SCHEMAS[url])):
        body = dict(BODIES[url])
        if name in rejected:
            refused = rig.http.post(url, json={**body, name: "anything"})
            assert refused.status_code == 400 and rejected[name] in error(refused)["message"], name
            assert f"| `{name}` | refused | {rejected[name]} |" in section
            continue
        if name in ignored:
            assert f"| `{name}` | ignored | {ignored[name]} |" in section
            value = {"any": ["thing"]}
        else:
            assert re.search(rf"\\| `{name}` \\| (supported|required) \\|", section), name
            value = body.get(name, SAMPLES.get(name))
            value = value.get(url, value[""]) if isinstance(value, dict) and "" in value else value
        if name == "top_logprobs" and url == "/v1/chat/completions":
            body["logprobs"] = True
        if name in ("tool_choice", "parallel_tool_calls") and "tools" in kind.__struct_fields__:
            body["tools"] = SAMPLES["tools"].get(url, SAMPLES["tools"][""])
        done = rig.http.post(url, json={**body, name: value})
        assert done.status_code == 200, (name, done.text)
        nothing = {} if name in BODIES[url] else {name: None}
        assert rig.http.post(url, json={**body, **nothing}).status_code == 200, name
