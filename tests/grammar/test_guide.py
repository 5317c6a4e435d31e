"""Bad words and budgets of thoughts: exact over bytes, whichever tokens spell them, with grammars and drafts."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import InvalidParameterError
from mini_vllm.grammar import GrammarCompiler, Guide
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import SamplingParams, StructuredOutputsParams

TAGS = ("<think>", "</think>")


class Tokenizer(ByteTokenizer):
    """Bytes, but the tags are one token each."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        parts = re.split(f"({'|'.join(TAGS)})", text)
        return [i for part in parts for i in ([self.id_of(part)] if part in TAGS else part.encode())]


TOKENIZER = Tokenizer(merges=[b"ab", b"ba", b"abab", b"bc", b" ca", b"</think>", b"<think>"])
COMPILER = GrammarCompiler(TOKENIZER, eos_token_ids=TOKENIZER.eos_token_ids)
LETTERS = [i for i in range(TOKENIZER.vocab_size) if set(TOKENIZER.token_bytes(i)) <= set(b"abc ")]
EOS = TOKENIZER.eos_token_ids[0]


def start(prompt=(), **params) -> Guide:
    guide = COMPILER.start(SamplingParams(**params), prompt)
    assert isinstance(guide, Guide)
    return guide


def allowed(guide: Guide, drafts=()) -> list[set[int]]:
    masks = np.zeros((len(drafts) + 1, guide.num_words), dtype=np.uint32)
    guide.fill(masks, drafts=drafts)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [
        set(np.flatnonzero(row)[: TOKENIZER.vocab_size].tolist()) & set(range(TOKENIZER.vocab_size)) for row in bits
    ]


def test_nothing_guides_a_plain_request() -> None:
    assert COMPILER.start(SamplingParams(), (1, 2)) is None


@given(
    st.lists(st.text("abc ", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.sampled_from(LETTERS), max_size=12),
)
def test_exactly_the_tokens_that_complete_a_word_are_banned(words, path) -> None:
    guide, text = start(bad_words=words), b""
    for token_id in path:
        permitted = allowed(guide)[0]
        for candidate in LETTERS:
            grown = text + TOKENIZER.token_bytes(candidate)
            completes = any(word.encode() in grown for word in words)
            assert (candidate in permitted) == (not completes)
        assert EOS in permitted
        if token_id not in permitted:
            continue
        assert guide.accept([token_id]) == 1
        text += TOKENIZER.token_bytes(token_id)
    assert not any(word.encode() in text for word in words)


def test_drafts_are_judged_one_after_another_and_leave_no_trace() -> None:
    guide = start(bad_words=["abc"])
    a, b, c = b"abc"
    before = allowed(guide)
    rows = allowed(guide, drafts=[a, b, c])
    assert c in rows[0] and c in rows[1] and c not in rows[2]
    assert allowed(guide) == before
    guide.accept([a, b])
    assert c not in allowed(guide)[0] and allowed(guide)[0] == rows[2]


def test_a_special_token_between_the_parts_of_a_word_changes_nothing() -> None:
    guide = start(bad_words=["ab"])
    guide.accept([ord("a"), EOS])
    assert ord("b") not in allowed(guide)[0]


def test_a_required_form_goes_before_bad_words() -> None:
    form = StructuredOutputsParams(choice=["cab", "bob"])
    guide = start(bad_words=["ca", "ob"], structured_outputs=form)
    first = allowed(guide)[0]
    assert ord("b") in first and ord("c") in first
    guide.accept(b"bo")
    assert ord("b") in allowed(guide)[0] and not guide.is_complete  # the only way on
    guide.accept(b"b")
    assert guide.is_complete and guide.error is None


def think(budget: int, *, prompt: str = "", forced_from: int, said: str = "<think>") -> None:
    """Thoughts of dots are ended by the tag after `forced_from` tokens of the answer."""
    guide = start(TOKENIZER.encode(prompt), thinking_token_budget=budget)
    ids = [*TOKENIZER.encode(said), *b"." * 40]
    for count, token_id in enumerate(ids):
        permitted = allowed(guide)[0]
        assert (len(permitted) == 1) == (count == forced_from), count
        if count == forced_from:
            [closing] = permitted
            assert TOKENIZER.token_bytes(closing) == b"</think>"
            guide.accept([closing])
            assert len(allowed(guide)[0]) > 200
            return
        guide.accept([token_id])
    raise AssertionError("never ended")


def test_thoughts_end_with_their_budget() -> None:
    think(5, forced_from=6)
    think(0, forced_from=1)
    think(3, prompt="hi <think>\n", said="", forced_from=3)
    think(0, prompt="<think>", said="", forced_from=0)
    think(2, said="  <think>", forced_from=5)


@pytest.mark.parametrize("said", ["<think>ab</think>" + "x" * 20, "no thoughts, " * 3, "<tab>"])
def test_what_is_no_thought_has_no_budget(said: str) -> None:
    guide = start(thinking_token_budget=4)
    for token_id in TOKENIZER.encode(said):
        assert token_id in allowed(guide)[0] and len(allowed(guide)[0]) > 200
        guide.accept([token_id])


def test_a_closing_tag_of_several_tokens_is_forced_token_by_token() -> None:
    plain = ByteTokenizer()
    guide = GrammarCompiler(plain, eos_token_ids=[EOS]).start(SamplingParams(thinking_token_budget=1), b"<think>")
    guide.accept(b".")
    written = b""
    while len(permitted := allowed(guide)[0]) == 1:
        guide.accept(permitted)
        written += plain.token_bytes(permitted.pop())
    assert written == b"</think>"


def test_parameters_are_checked() -> None:
    for params, name in (
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [3]}, "bad_words"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(**params)
        assert caught.value.param == name
    assert SamplingParams(bad_words="ab").bad_words == ("ab",)
