"""What text drafters guess."""

from mini_vllm.runner.drafting import FromText, Wanted
from mini_vllm.runner.text_drafters import History, NgramDrafter, SuffixDrafter


def tokens(guess):
    return guess and guess.token_ids


def test_ngram_copies_what_followed_the_longest_match():
    history = History((1, 2, 3, 9, 8, 7, 2, 3, 5, 6, 1, 2, 3))
    assert tokens(NgramDrafter().propose(history, 3)) == (9, 8, 7)  # after 1 2 3, not after the later 2 3
    assert tokens(NgramDrafter().propose(history, 2)) == (9, 8)
    assert tokens(NgramDrafter(longest=2).propose(history, 2)) == (5, 6)  # equal matches: the later


def test_ngram_goes_on_with_what_it_writes_itself():
    assert tokens(NgramDrafter().propose(History((4, 5, 6, 4, 5, 6, 4, 5)), 7)) == (6, 4, 5, 6, 4, 5, 6)
    assert tokens(NgramDrafter().propose(History((1, 1, 1)), 4)) == (1, 1, 1, 1)


def test_ngram_says_nothing_without_a_match():
    for tokens in ((), (1,), (1, 2), (1, 2, 3, 4), (1, 2, 9, 2)):
        assert NgramDrafter().propose(History(tokens), 4) is None
    assert NgramDrafter().propose(History((1, 2, 1, 2)), 0) is None


def test_kinds_tell_long_matches_from_short_ones():
    drafter = NgramDrafter()
    kinds = [drafter.propose(History((*range(10), 90, *range(10 - n, 10))), 1).kind for n in range(2, 10)]
    assert kinds == [0, 1, 1, 2, 2, 2, 3, 3] and len(drafter.expected) == 4
    drafter = SuffixDrafter()
    history = History(())
    history.extend((1, 2, 3, 4, 5, 6, 7))
    drafter.end(history)
    for length in (2, 3, 4, 5):
        later = History(())
        later.extend((9, *range(7 - length, 7)))
        assert drafter.propose(later, 3) == (length - 2, (7,))
    assert len(drafter.expected) == 4


def test_history_grows():
    history = History(tuple(range(100)))
    for start in range(100, 900, 7):
        history.extend(tuple(range(start, start + 7)))
    assert history.tokens == list(range(905)) and history.length == 905 and history.num_prompt == 100


def test_suffix_learns_from_earlier_outputs_of_the_same_salt():
    drafter = SuffixDrafter()
    first = History((9, 9), "a")
    first.extend((1, 2, 3, 4, 5, 6))
    drafter.end(first)
    for salt, expected in (("a", (4, 5, 6)), ("b", None)):
        history = History((7,), salt)
        history.extend((2, 3))
        assert tokens(drafter.propose(history, 8)) == expected


def test_suffix_follows_the_majority_and_gives_up_when_there_is_none():
    drafter = SuffixDrafter()
    for last in (5, 5, 6):
        history = History(())
        history.extend((1, 2, last))
        drafter.end(history)
    history = History(())
    history.extend((1, 2))
    assert tokens(drafter.propose(history, 1)) == (5,)
    for last in (7, 8, 9, 10):
        other = History(())
        other.extend((1, 2, last))
        drafter.end(other)
    assert drafter.propose(history, 1) is None  # 5 has 2 of 7


def test_suffix_statistics_are_bounded():
    drafter = SuffixDrafter(capacity=100)
    history = History(())
    for start in range(0, 5000, 50):
        history.extend(tuple(range(start, start + 50)))
        drafter.propose(history, 1)
        assert len(drafter) <= 100
    assert drafter.propose(history, 1) is None
    old = History(())
    old.extend((1, 2))
    assert drafter.propose(old, 1) is None  # forgotten long ago


def test_what_was_found_and_never_asked_for_goes_with_its_sequence():
    drafter, history = FromText(NgramDrafter()), History((1, 2, 3, 1, 2))
    assert drafter.look(history, 2) == 0
    assert drafter.propose([Wanted(None, history, 2)]) == [(3, 1)]
    assert drafter.look(history, 2) == 0
    drafter.end(history, None)
    assert drafter._found == {}
