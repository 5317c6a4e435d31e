"""/v1/embeddings as clients call it."""

import base64
import struct

import numpy as np
import pytest
from openai import OpenAI
from server.rig import MODEL, Rig, serving


def embed(rig: Rig, given: object, **fields: object):
    return rig.http.post("/v1/embeddings", json={"input": given, **fields})


def test_every_shape_of_input_in_order(rig: Rig) -> None:
    texts = ["abc", "hello", "z"]
    expected = [[float(ord(text[0])), float(ord(text[-1])), float(len(text))] for text in texts]
    body = embed(rig, texts, normalize=False).json()
    assert [entry["embedding"] for entry in body["data"]] == expected
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(i, "embedding") for i in range(3)]
    assert (body["object"], body["model"], body["usage"]) == (
        "list",
        MODEL,
        {"prompt_tokens": 9, "total_tokens": 9},
    )
    ids = [list(text.encode()) for text in texts]
    assert embed(rig, ids, normalize=False).json() == body
    one = embed(rig, ids[1], normalize=False).json()["data"]
    assert [entry["embedding"] for entry in one] == expected[1:2]


def test_base64_is_little_endian_float32(rig: Rig) -> None:
    floats = embed(rig, "abc").json()["data"][0]["embedding"]
    coded = embed(rig, "abc", encoding_format="base64").json()["data"][0]["embedding"]
    assert struct.unpack("<3f", base64.b64decode(coded)) == pytest.approx(floats)
    assert sum(x * x for x in floats) == pytest.approx(1)


def test_the_sdk_reads_both_and_dimensions(rig: Rig) -> None:
    client = OpenAI(base_url=f"{rig.url}/v1", api_key="none")
    default = client.embeddings.create(model=MODEL, input=["abc", "de"])
    plain = client.embeddings.create(model=MODEL, input=["abc", "de"], encoding_format="float")
    assert np.allclose([e.embedding for e in default.data], [e.embedding for e in plain.data])
    short = client.embeddings.create(model=MODEL, input="abc", dimensions=2).data[0].embedding
    assert len(short) == 2 and np.isclose(np.hypot(*short), 1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [999999]}, "prompt"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({}, "input"),
    ],
)
def test_bad_requests_name_the_field(rig: Rig, fields: dict, param: str) -> None:
    answer = rig.http.post("/v1/embeddings", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_too_long_is_a_context_length_error(rig: Rig) -> None:
    answer = embed(rig, "a" * 600)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length" in answer.json()["error"]["message"]


def test_more_inputs_than_may_wait_and_a_deadline() -> None:
    with serving(delay=0.01, max_num_seqs=2, max_waiting=40) as rig:
        assert len(embed(rig, ["a"] * 100).json()["data"]) == 100
        late = embed(rig, ["a"] * 100, deadline_ms=50)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert embed(rig, "a").status_code == 200
