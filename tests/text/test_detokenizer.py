"""Incremental decoding: whole characters at once, nothing broken, the same however tokens are grouped."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.vocabularies import SMOLLM, byte_level, gguf_byte_level, gguf_sentence_piece, sentence_piece

from mini_vllm.testing.byte_tokenizer import ByteTokenizer
from mini_vllm.text import Detokenizer, Tokenizer

EMOJI = "🫠🥹龜👨‍👩‍👧"


@cache
def tokenizers() -> tuple[Tokenizer, ...]:
    return (
        Tokenizer.from_gguf(gguf_byte_level(byte_level(SMOLLM), SMOLLM)),
        Tokenizer.from_gguf(gguf_sentence_piece(sentence_piece())),
        Tokenizer.from_gguf(gguf_sentence_piece(sentence_piece(), add_space_prefix=False)),
    )


def deltas(tokenizer, ids, *, sizes=(), **options) -> list[str]:
    """Text of each push (one token each where sizes run out), and of the flush."""
    detokenizer = Detokenizer(tokenizer, **options)
    found, position, sizes = [], 0, list(sizes)
    while position < len(ids):
        size = sizes.pop(0) if sizes else 1
        found.append(detokenizer.push(ids[position : position + size]))
        position += size
    return [*found, detokenizer.flush()]


@settings(max_examples=150, deadline=None)
@given(
    which=st.integers(0, 2),
    ids=st.lists(st.integers(-2, 800), max_size=40),
    sizes=st.lists(st.integers(0, 5).filter(bool), max_size=40),
    skip=st.booleans(),
)
def test_any_grouping_of_any_ids_gives_the_same_text(which, ids, sizes, skip) -> None:
    tokenizer = tokenizers()[which]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas(tokenizer, ids, skip_special_tokens=skip)) == whole
    assert "".join(deltas(tokenizer, ids, sizes=sizes, skip_special_tokens=skip)) == whole


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60), which=st.integers(0, 2))
def test_text_survives_the_round_trip_token_by_token(text: str, which: int) -> None:
    tokenizer = tokenizers()[which]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pushed = deltas(tokenizer, ids, skip_special_tokens=False)
    expected = text.replace("▁", " ") if which else text  # SentencePiece cannot tell its mark from a space
    if which and text.startswith("<s>"):
        return
    assert "".join(pushed) == expected
    assert pushed[-1] == ""
    assert all(("\ufffd" in delta) <= ("\ufffd" in text) for delta in pushed)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(1, 4), max_size=24))
def test_bytes_decode_as_python_decodes_the_whole(data: bytes, cuts: list[int]) -> None:
    tokenizer = ByteTokenizer()
    assert "".join(deltas(tokenizer, list(data), sizes=cuts)) == data.decode("utf-8", "replace")


def test_str_01_characters_that_straddle_tokens_are_never_broken() -> None:
    tokenizer = ByteTokenizer(merges=[b"\xf0\x9f", b"\xab\xa0", b"\xa0\xf0\x9f\xa5", b"ok\xf0"])
    halves = Detokenizer(tokenizer)
    assert [halves.push([256]), halves.push([257])] == ["", "🫠"]
    mixed = Detokenizer(tokenizer)
    assert mixed.push([ord("a"), 259]) == "aok"  # the complete part of a token is passed on at once
    assert mixed.holding
    assert mixed.push([0x9F, 0xAB]) == ""
    assert mixed.push([258]) == "🫠"
    assert mixed.push([0xB9]) == "🥹"
    assert (mixed.holding, mixed.flush()) == (False, "")


@pytest.mark.parametrize("which", [0, 1])
def test_str_01_no_delta_holds_a_replacement_character(which: int) -> None:
    tokenizer = tokenizers()[which]
    ids = tokenizer.encode(EMOJI, add_special_tokens=False)
    pushed = deltas(tokenizer, ids)
    assert len(ids) > len(EMOJI)
    assert "".join(pushed) == EMOJI
    assert not any("\ufffd" in delta for delta in pushed)


def test_str_02_sequences_do_not_share_state() -> None:
    tokenizer = tokenizers()[0]
    ids = tokenizer.encode(EMOJI)
    streams = [Detokenizer(tokenizer) for _ in range(8)]
    texts = [""] * 8
    for step in range(len(ids) + 8):
        for lane, stream in enumerate(streams):
            if 0 <= step - lane < len(ids):
                texts[lane] += stream.push([ids[step - lane]])
    assert texts == [EMOJI] * 8


@pytest.mark.parametrize("tail", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\xab", b"\xe2\x82", b"\xc3"])
def test_str_03_a_held_tail_gives_one_replacement_character_at_the_end(tail: bytes) -> None:
    tokenizer = ByteTokenizer()
    ids = [ord("a"), *tail]
    pushed = deltas(tokenizer, ids)
    assert pushed == ["a", *[""] * len(tail), "\ufffd"]
    assert tokenizer.decode(ids) == "a\ufffd"


def test_invalid_bytes_are_replaced_as_soon_as_that_is_certain() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert detokenizer.push([0xF0, 0x9F]) == ""
    assert detokenizer.push([ord("x")]) == "\ufffdx"
    assert detokenizer.push([0xFF]) == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_are_left_out_or_shown() -> None:
    tokenizer = ByteTokenizer()
    ids = [tokenizer.id_of("<|im_start|>"), ord("a"), tokenizer.id_of("<|im_end|>")]
    assert "".join(deltas(tokenizer, ids)) == "a"
    assert "".join(deltas(tokenizer, ids, skip_special_tokens=False)) == "<|im_start|>a<|im_end|>"


def test_only_one_leading_space_is_dropped() -> None:
    tokenizer = tokenizers()[1]
    mark = tokenizer.id_of("▁")
    assert deltas(tokenizer, [mark, mark, mark]) == ["", " ", " ", ""]
    assert deltas(tokenizer, [mark, mark], keep_leading_space=True) == [" ", " ", ""]
