"""One choice's text: equal for every way of cutting the tokens into deltas, and exact at stops and ends."""

import itertools
import random

import pytest
from engine.parts import make_engine
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.engine.choice import ChoiceText
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import SamplingParams, TokenDelta

MERGES = (b"ab", b"abc", b"\xf0\x9f", b"\xab\xa0x", b" the", "é".encode() + b"\xc3")
TOKENIZER = ByteTokenizer(merges=MERGES)
FRONTEND = make_engine(tokenizer=TOKENIZER).frontend
EOS = TOKENIZER.id_of("<eos>")
IM_END = TOKENIZER.id_of("<|im_end|>")


def make_choice(**params):
    prepared = FRONTEND.prepare("x", SamplingParams(max_tokens=400, **params))
    [choice] = FRONTEND.choices(prepared).values()
    return choice


def run(choice: ChoiceText, ids, *, cuts=(), finish_reason="length", stop_token_id=None):
    """Push `ids`, cut at these places, the last part with the end; the text deltas up to the end of the choice."""
    edges = [0, *cuts, len(ids)]
    deltas = []
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        is_last = i == len(edges) - 2
        delta = choice.push(
            TokenDelta(
                request_id="r",
                token_ids=tuple(ids[start:end]),
                finish_reason=finish_reason if is_last else None,
                stop_token_id=stop_token_id if is_last else None,
            )
        )
        if delta is not None:
            deltas.append(delta)
    return deltas


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=30),
    st.data(),
    st.lists(st.sampled_from(["ab", "bca", "é", "the", "aa", "�"]), max_size=3, unique=True),
    st.integers(0, 12),
    st.booleans(),
)
def test_stream_equals_non_stream_for_every_cut(ids, data, stops, min_tokens, include):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    params = dict(stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    streamed, whole = run(make_choice(**params), ids, cuts=cuts), run(make_choice(**params), ids)
    assert text_of(streamed) == text_of(whole)
    for name in ("finish_reason", "stop_reason", "num_output_tokens"):
        assert getattr(streamed[-1], name) == getattr(whole[-1], name)
    assert sum((delta.token_ids for delta in streamed), ()) == whole[-1].token_ids
    assert len(whole[-1].token_ids) == whole[-1].num_output_tokens
    if not stops:
        assert text_of(whole) == TOKENIZER.decode(ids)


def test_str_03_a_half_emoji_at_the_length_limit_is_one_replacement_in_stream_and_not():
    ids = [*ids_of("hi "), 0xF0, 0x9F]
    for cuts in ((), (3,), (4,), (1, 2, 3, 4)):
        deltas = run(make_choice(), ids, cuts=cuts)
        assert text_of(deltas) == "hi �"
        assert deltas[-1].finish_reason == "length"


def test_str_01_no_delta_holds_a_broken_character():
    ids = ids_of("a🫠龜é")
    deltas = run(make_choice(), ids, cuts=range(1, len(ids)))
    assert [delta.text for delta in deltas if delta.text] == ["a", "🫠", "龜", "é"]


def test_stp_01_nothing_of_a_stop_string_is_streamed_before_it_is_complete():
    ids = ids_of("ABCDEFGHIJKL")
    deltas = run(make_choice(stop=["DEFGHIJ"]), ids, cuts=range(1, len(ids)))
    assert [delta.text for delta in deltas] == ["A", "B", "C", "", "", "", "", "", "", ""]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "DEFGHIJ")
    assert deltas[-1].num_output_tokens == 10


def test_stp_02_a_stop_spanning_tokens_is_found_and_the_engine_is_told_to_end():
    choice = make_choice(stop=["O P Q"])
    deltas = run(choice, ids_of("L M N O P Q R S"), cuts=range(1, 15))
    assert text_of(deltas) == "L M N "
    assert choice.must_abort and deltas[-1].finish_reason == "stop"


def test_text_that_only_began_a_stop_is_given_at_the_end():
    deltas = run(make_choice(stop=["lazy dog"]), ids_of("the lazy d"), cuts=range(1, 10))
    assert text_of(deltas) == "the lazy d"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("length", None)


def test_stp_05_only_what_may_begin_a_stop_is_held():
    deltas = run(make_choice(stop=["<a-very-long-stop-string-of-40-characters>"]), ids_of("abc<a-d"), cuts=range(1, 7))
    assert [delta.text for delta in deltas] == ["a", "b", "c", "", "", "", "<a-d"]


def test_stp_11_the_stop_that_is_complete_first_wins_whatever_the_order():
    for stops in (["protons in it", "ionized"], ["ionized", "protons in it"]):
        deltas = run(make_choice(stop=stops), ids_of("gas is ionized protons in it"), cuts=range(1, 28))
        assert text_of(deltas) == "gas is "
        assert deltas[-1].stop_reason == "ionized"


def test_a_stop_string_inside_one_delta_cuts_tokens_and_logprobs_too():
    choice = make_choice(stop=["cd"])
    [delta] = run(choice, ids_of("abcdef"))
    assert delta.token_ids == tuple(ids_of("abcd")) and delta.num_output_tokens == 4
    assert delta.text == "ab" and not choice.must_abort


def test_include_stop_str_in_output():
    assert text_of(run(make_choice(stop=["cd"], include_stop_str_in_output=True), ids_of("abcdef"))) == "abcd"


def test_eos_is_reported_as_a_token_but_not_as_text():
    [delta] = run(make_choice(), [*ids_of("ok"), EOS], finish_reason="stop", stop_token_id=EOS)
    assert (delta.text, delta.stop_reason, delta.num_output_tokens) == ("ok", None, 3)
    assert delta.token_ids[-1] == EOS


def test_eos_is_not_text_even_when_special_tokens_are_shown():
    choice = make_choice(skip_special_tokens=False)
    [delta] = run(choice, [IM_END, *ids_of("ok"), EOS], finish_reason="stop", stop_token_id=EOS)
    assert delta.text == "<|im_end|>ok"


def test_a_stop_token_id_is_the_reason_and_its_text_is_hidden():
    params = dict(stop_token_ids=[ord("!")])
    [delta] = run(make_choice(**params), ids_of("ok!"), finish_reason="stop", stop_token_id=ord("!"))
    assert (delta.text, delta.stop_reason, delta.num_output_tokens) == ("ok", ord("!"), 3)
    choice = make_choice(**params, include_stop_str_in_output=True)
    [delta] = run(choice, ids_of("ok!"), finish_reason="stop", stop_token_id=ord("!"))
    assert delta.text == "ok!"


@pytest.mark.parametrize("include", [False, True])
def test_stp_09_a_stop_string_that_is_a_special_token_becomes_a_stop_token(include):
    params = SamplingParams(stop=["<|im_end|>", "zzz"], include_stop_str_in_output=include)
    prepared = FRONTEND.prepare("hi", params)
    assert prepared.requests[0].stop_token_ids == (IM_END,)
    [choice] = FRONTEND.choices(prepared).values()
    [delta] = run(choice, [*ids_of("ok"), IM_END], finish_reason="stop", stop_token_id=IM_END)
    assert (delta.text, delta.stop_reason) == ("ok<|im_end|>" if include else "ok", "<|im_end|>")


def test_stp_07_stop_strings_are_not_matched_before_min_tokens():
    deltas = run(make_choice(stop=["ab"], min_tokens=5), ids_of("ababcdabx"), cuts=range(1, 9))
    assert text_of(deltas) == "ababcd"
    assert (deltas[-1].num_output_tokens, deltas[-1].finish_reason) == (8, "stop")


def test_after_the_end_nothing_more_is_text():
    choice = make_choice(stop=["b"])
    run(choice, ids_of("abcd"), cuts=(2,))
    assert choice.push(TokenDelta(request_id="r", token_ids=(99,), finish_reason="abort")) is None


def test_an_error_keeps_the_text_so_far_and_says_what_happened():
    choice = make_choice()
    choice.push(TokenDelta(request_id="r", token_ids=tuple(ids_of("so f"))))
    delta = choice.push(TokenDelta(request_id="r", finish_reason="error", error="a step failed"))
    assert (delta.finish_reason, delta.error, delta.num_output_tokens) == ("error", "a step failed", 4)


def test_random_outputs_through_every_chunking_agree_with_one_push():
    source = random.Random(7)
    for _ in range(3000):
        ids = [source.randrange(TOKENIZER.vocab_size) for _ in range(source.randrange(1, 24))]
        stops = source.sample(["a", "ab", "bb", " the", "é", "ca"], source.randrange(3))
        cuts = sorted(source.randrange(len(ids) + 1) for _ in range(source.randrange(6)))
        streamed, whole = run(make_choice(stop=stops), ids, cuts=cuts), run(make_choice(stop=stops), ids)
        assert text_of(streamed) == text_of(whole)
        assert not any(stop in text_of(whole) for stop in stops)
