"""Grammars: masks over bytes, cursors that are independent, drafts, what is refused."""

import json
import threading
import time

import numpy as np
import pytest

from mini_vllm.errors import InvalidParameterError
from mini_vllm.grammar import GrammarCompiler
from mini_vllm.grammar.cursor import allows
from mini_vllm.grammar.schema import prepare_schema
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import StructuredOutputsParams as Structured

TOKENIZER = ByteTokenizer(merges=[b"ab", b"bc", b'{"', "é".encode()[:1], b"a"])
EOS = TOKENIZER.eos_token_ids[0]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, eos_token_ids=[EOS])


def allowed(cursor) -> set[int]:
    bits = np.empty((1, cursor.num_words), dtype=np.uint32)
    cursor.fill(bits)
    return {i for i in range(TOKENIZER.vocab_size) if allows(bits[0], i)}


def pieces(cursor) -> set[bytes]:
    return {TOKENIZER.token_bytes(i) for i in allowed(cursor)}


def test_every_token_that_spells_the_text_is_allowed(compiler) -> None:
    cursor = compiler.compile(Structured(choice=("abc", "bx"))).start()
    assert pieces(cursor) == {b"a", b"ab", b"b"}
    assert sum(TOKENIZER.token_bytes(i) == b"a" for i in allowed(cursor)) == 2  # two tokens of the same bytes
    cursor.accept(TOKENIZER.encode("ab"))
    cursor.accept(TOKENIZER.encode("c"))
    assert cursor.is_complete and cursor.error is None
    assert allowed(cursor) == {EOS}


def test_sto_07_characters_are_spelled_in_bytes(compiler) -> None:
    cursor = compiler.compile(Structured(json={"enum": ["é", "\U0001f600"]})).start()
    cursor.accept(b'"')
    first = pieces(cursor)
    assert "é".encode()[:1] in first and "\U0001f600".encode()[:1] in first
    cursor.accept("\U0001f600".encode() + b'"')
    assert cursor.is_complete


def test_a_special_token_is_never_a_part_of_the_text(compiler) -> None:
    cursor = compiler.compile(Structured(choice=("<eos>!", "<|im_end|>"))).start()
    assert not allowed(cursor) & TOKENIZER.special_ids
    cursor.accept(b"<eos>!")
    assert cursor.is_complete


def test_eos_is_allowed_where_the_text_may_end_and_ends_it(compiler) -> None:
    cursor = compiler.compile(Structured(regex="[0-9]{2,4}")).start()
    cursor.accept(b"1")
    assert EOS not in allowed(cursor)
    cursor.accept(b"2")
    assert EOS in allowed(cursor) and not cursor.is_complete
    cursor.accept([EOS])
    assert cursor.is_complete


def test_sto_10_cursors_of_one_grammar_are_independent(compiler) -> None:
    grammar = compiler.compile(Structured(regex="[0-9]{8}"))
    assert compiler.compile(Structured(regex="[0-9]{8}")) is grammar
    one, two = grammar.start(), grammar.start()
    one.accept(b"1234567")
    assert not two.is_complete and len(allowed(two)) == 10
    one.accept(b"8")
    assert one.is_complete and not two.is_complete
    two.accept(b"87654321")
    assert two.is_complete


def test_drafts_are_masked_one_by_one_and_taken_back(compiler) -> None:
    cursor = compiler.compile(Structured(regex="ab[cd]e|xy")).start()
    bits = np.empty((4, cursor.num_words), dtype=np.uint32)
    cursor.fill(bits, drafts=list(b"abd"))
    seen = [{bytes([i]) for i in range(256) if allows(row, i)} for row in bits]
    assert seen == [{b"a", b"x"}, {b"b"}, {b"c", b"d"}, {b"e"}]
    assert b"x" in pieces(cursor)  # where it was
    cursor.fill(bits, drafts=list(b"aqd"))  # q does not fit: nothing is chosen behind it
    assert not bits[2:].any() and allows(bits[1], ord("b"))
    cursor.accept(b"xy")
    assert cursor.is_complete
    other = compiler.compile(Structured(choice=("xy",))).start()
    other.fill(bits, drafts=[*b"xy", EOS])  # past the end and back
    assert allows(bits[2], EOS) and not other.is_complete
    other.accept(b"xy")
    assert other.is_complete and other.error is None


def test_a_token_that_does_not_fit_is_an_error_and_stays_one(compiler) -> None:
    cursor = compiler.compile(Structured(choice=("abc",))).start()
    cursor.accept(b"q")
    assert cursor.error and not cursor.is_complete
    cursor.accept(b"abc")
    assert not cursor.is_complete


def test_a_model_without_eos_ends_where_nothing_may_follow() -> None:
    cursor = GrammarCompiler(TOKENIZER, eos_token_ids=[]).compile(Structured(choice=("ab",))).start()
    cursor.accept(b"ab")
    assert cursor.is_complete and not allowed(cursor)


def test_threads_that_want_the_same_grammar_share_one_compilation() -> None:
    compiler, found = GrammarCompiler(TOKENIZER, eos_token_ids=[EOS]), []
    wanted = Structured(json={"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(200)}})
    threads = [threading.Thread(target=lambda: found.append(compiler.compile(wanted))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {"type": "objet"}},
        {"json": "{"},
        {"json": "[]"},
        {"json": False},
        {"json": {"$ref": "#"}},
        {"json": {"type": "integer", "minimum": 10**30, "maximum": 5}},
        {"regex": "(a"},
        {"regex": "(a{1000}){1000}"},
        {"regex": "a" * 200_001},
        {"grammar": "start: nobody"},
        {"grammar": "not a grammar"},
        {"grammar": "root ::= ("},
    ],
)
def test_what_is_no_grammar_is_refused_in_time_and_by_name(compiler, wanted) -> None:
    begin = time.perf_counter()
    with pytest.raises(InvalidParameterError) as caught:
        compiler.compile(Structured(**wanted, source="mine"))
    assert caught.value.param == "mine" and len(str(caught.value)) < 400 and "\n" not in str(caught.value)
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize("wanted", [{}, {"json": "{}", "regex": "a"}, {"regex": ""}, {"choice": []}, {"choice": "ab"}])
def test_exactly_one_thing_is_asked_for(wanted) -> None:
    with pytest.raises(InvalidParameterError):
        Structured(**wanted)


def test_nesting_is_bounded() -> None:
    schema: dict = {"type": "integer"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidParameterError, match="64 deep"):
        prepare_schema(json.dumps(schema), strict=False)
    text = "[" * 100_000
    with pytest.raises(InvalidParameterError, match="not valid JSON"):
        prepare_schema(text, strict=False)


def closed(schema) -> dict:
    prepared = prepare_schema(json.dumps(schema), strict=False)
    prepared.pop("x-guidance")
    return prepared


def test_objects_that_list_their_properties_are_closed_where_that_loses_nothing() -> None:
    inner = {"properties": {"b": {}}}
    assert closed({"properties": {"a": inner}}) == {
        "properties": {"a": {**inner, "additionalProperties": False}},
        "additionalProperties": False,
    }
    for schema in (
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "minProperties": 2},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"$defs": {"x": {"properties": {"a": {}}}}, "$ref": "#/$defs/x", "required": ["b"]},
    ):
        assert closed(schema) == schema
    named = {"properties": {"allOf": {"enum": [{"properties": {}}]}}}  # a property of that name joins nothing
    assert closed(named) == {**named, "additionalProperties": False}


def test_any_property_may_come_where_the_schema_leaves_it_open(compiler) -> None:
    free = compiler.compile(Structured(json_object=True)).start()
    free.accept(b'{"anything": [1, {"x": null}]}')
    assert free.is_complete
    shut = compiler.compile(Structured(json={"properties": {"a": {"type": "null"}}, "type": "object"})).start()
    shut.accept(b'{"')
    assert pieces(shut) == {b"a"}
