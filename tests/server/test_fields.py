"""Every field of OpenAI's request schemas is supported, documented as ignored, or rejected with a reason."""

from types import ModuleType
from typing import get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol import fields
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.completions import CompletionRequest
from mini_vllm.server.protocol.embeddings import EmbeddingRequest
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.protocol.responses import ResponsesRequest

ENDPOINTS = [
    (CompletionRequest, completion_create_params, fields.COMPLETIONS_IGNORED, fields.COMPLETIONS_REJECTED),
    (ChatRequest, chat_create_params, fields.CHAT_IGNORED, fields.CHAT_REJECTED),
    (ResponsesRequest, response_create_params, fields.RESPONSES_IGNORED, fields.RESPONSES_REJECTED),
    (EmbeddingRequest, embedding_create_params, fields.EMBEDDINGS_IGNORED, fields.EMBEDDINGS_REJECTED),
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
