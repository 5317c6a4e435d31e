"""Stop strings in streams, against a search through the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.text import StopStrings


def run(stops, pieces, *, include=False, active=None):
    """(texts emitted, flush, matched stop)"""
    matcher = StopStrings(stops, include=include)
    emitted = []
    for index, piece in enumerate(pieces):
        text, matched = matcher.push(piece, active=active is None or index >= active)
        emitted.append(text)
        if matched is not None:
            return emitted, "", matched
    return emitted, matcher.flush(), None


def brute_force(stops, text, *, include=False):
    """Read character by character; the first stop to be complete wins, the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


small_text = st.text(alphabet="abc", max_size=12)
small_stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(stops=small_stops, pieces=st.lists(small_text, max_size=8), include=st.booleans())
def test_any_chunking_equals_a_search_through_the_whole_text(stops, pieces, include) -> None:
    emitted, rest, matched = run(stops, pieces, include=include)
    assert ("".join(emitted) + rest, matched) == brute_force(stops, "".join(pieces), include=include)


@settings(max_examples=200, deadline=None)
@given(stops=small_stops, pieces=st.lists(small_text, max_size=8))
def test_stp_05_only_a_proper_prefix_of_a_stop_is_held(stops, pieces) -> None:
    matcher = StopStrings(stops)
    seen = emitted = ""
    for piece in pieces:
        text, matched = matcher.push(piece)
        seen, emitted = seen + piece, emitted + text
        if matched is not None:
            return
        held = seen[len(emitted) :]
        assert emitted + held == seen
        assert held == "" or any(len(held) < len(stop) and stop.startswith(held) for stop in stops)


def test_stp_05_a_long_stop_does_not_delay_unrelated_text() -> None:
    matcher = StopStrings(["<a-very-long-stop-string-of-40-characters>"])
    assert [matcher.push(word)[0] for word in ("One ", "two ", "three <", "b>")] == ["One ", "two ", "three ", "<b>"]


def test_stp_01_nothing_of_a_stop_is_streamed_before_it_is_complete() -> None:
    emitted, rest, matched = run(["DEFGHIJ"], ["DEF", "G", "HI", "J", "KLM"])
    assert (emitted, rest, matched) == (["", "", "", ""], "", "DEFGHIJ")
    emitted, rest, matched = run(["DEFGHIJ"], ["DEF", "G", "HI", "X", "K"])
    assert (emitted, rest, matched) == (["", "", "", "DEFGHIX", "K"], "", None)


def test_stp_02_a_stop_over_several_tokens_is_found() -> None:
    letters = [" L", " M", " N", " O", " P", " Q", " R"]
    emitted, _, matched = run(["O P Q"], letters)
    assert ("".join(emitted), matched) == (" L M N ", "O P Q")
    whole, _, _ = run(["O P Q"], ["".join(letters)])
    assert whole == [" L M N "]


@pytest.mark.parametrize(
    ("stop", "text", "held"), [("O P Q", " O", "O"), ("OOP", "xOO", "OO"), ("aabc", "aab", "aab"), ("ab", "ba", "a")]
)
def test_stp_02_the_held_suffix_is_the_longest_possible(stop: str, text: str, held: str) -> None:
    matcher = StopStrings([stop])
    assert matcher.push(text) == (text.removesuffix(held), None)
    assert matcher.flush() == held


@pytest.mark.parametrize("swap", [False, True])
def test_stp_11_the_earliest_in_the_text_wins_whatever_the_order(swap: bool) -> None:
    stops = ["atoms with a large number of 11 protons", "ionized"]
    words = ["The", " gas", " is", " ion", "ized", " and", " atoms", " with", " a", " large", " number"]
    emitted, _, matched = run(stops[::-1] if swap else stops, words)
    assert ("".join(emitted), matched) == ("The gas is ", "ionized")


def test_the_stop_can_be_included() -> None:
    emitted, _, matched = run(["\n\n"], ["a\n", "\nb"], include=True)
    assert (emitted, matched) == (["a", "\n\n"], "\n\n")


def test_nothing_follows_a_match() -> None:
    matcher = StopStrings(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.flush() == ""


def test_inactive_text_is_not_matched_but_may_begin_a_stop() -> None:
    matcher = StopStrings(["END", "E"])
    assert matcher.push("aENDb", active=False) == ("aENDb", None)
    assert matcher.push("cEN", active=False) == ("c", None)
    assert matcher.push("D!") == ("", "END")
    matcher = StopStrings(["E", "ENDED"])
    assert matcher.push("E", active=False) == ("", None)  # could become the longer one
    assert matcher.push("N") == ("", None)  # the short one was complete before it counted
    assert matcher.push("x") == ("ENx", None)


def test_no_stops_pass_everything() -> None:
    matcher = StopStrings([])
    assert (matcher.push("anything"), matcher.flush()) == (("anything", None), "")
