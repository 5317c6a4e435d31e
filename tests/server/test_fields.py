"""Every field of OpenAI's request schemas is supported, documented as ignored, or rejected with a reason."""

from typing import get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol import fields
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.completions import CompletionRequest
from mini_vllm.server.protocol.reading import BodyReader

ENDPOINTS = [
    (CompletionRequest, completion_create_params, fields.COMPLETIONS_IGNORED, fields.COMPLETIONS_REJECTED),
    (ChatRequest, chat_create_params, fields.CHAT_IGNORED, fields.CHAT_REJECTED),
]


@pytest.mark.parametrize(("kind", "params", "ignored", "rejected"), ENDPOINTS)
def test_no_field_of_the_specification_is_forgotten(kind, params, ignored, rejected) -> None:
    specified = set(get_type_hints(params.CompletionCreateParamsStreaming)) | set(
        get_type_hints(params.CompletionCreateParamsNonStreaming)
    )
    assert len(specified) > 15
    supported = set(kind.__struct_fields__)
    assert specified - supported - set(ignored) - set(rejected) == set()


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
            reader.decode(b'{"prompt": "a", "messages": [], "%s": 1}' % name.encode())
        assert caught.value.param == name
        for nothing in (b"null", b"false", b"[]", b"{}", b'""'):
            reader.decode(b'{"prompt": "a", "messages": [], "%s": %s}' % (name.encode(), nothing))


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
