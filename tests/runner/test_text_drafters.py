"""What text drafters guess."""

from mini_vllm.runner.text_drafters import History, NgramDrafter, SuffixDrafter


def test_ngram_copies_what_followed_the_longest_match():
    history = History((1, 2, 3, 9, 8, 7, 2, 3, 5, 6, 1, 2, 3))
    assert NgramDrafter().propose(history, 3) == (9, 8, 7)  # after 1 2 3, not after the later 2 3
    assert NgramDrafter().propose(history, 2) == (9, 8)
    assert NgramDrafter(longest=2).propose(history, 2) == (5, 6)  # equal matches: the later


def test_ngram_goes_on_with_what_it_writes_itself():
    assert NgramDrafter().propose(History((4, 5, 6, 4, 5, 6, 4, 5)), 7) == (6, 4, 5, 6, 4, 5, 6)
    assert NgramDrafter().propose(History((1, 1, 1)), 4) == (1, 1, 1, 1)


def test_ngram_says_nothing_without_a_match():
    for tokens in ((), (1,), (1, 2), (1, 2, 3, 4), (1, 2, 9, 2)):
        assert NgramDrafter().propose(History(tokens), 4) == ()
    assert NgramDrafter().propose(History((1, 2, 1, 2)), 0) == ()


def test_history_grows():
    history = History(tuple(range(100)))
    for start in range(100, 900, 7):
        history.extend(tuple(range(start, start + 7)))
    assert history.tokens.tolist() == list(range(905)) and history.num_prompt == 100


def test_suffix_learns_from_earlier_outputs_of_the_same_salt():
    drafter = SuffixDrafter()
    first = History((9, 9), "a")
    first.extend((1, 2, 3, 4, 5, 6))
    drafter.end(first)
    for salt, expected in (("a", (4, 5, 6)), ("b", ())):
        history = History((7,), salt)
        history.extend((2, 3))
        assert drafter.propose(history, 8) == expected


def test_suffix_follows_the_majority_and_gives_up_when_there_is_none():
    drafter = SuffixDrafter()
    for last in (5, 5, 6):
        history = History(())
        history.extend((1, 2, last))
        drafter.end(history)
    history = History(())
    history.extend((1, 2))
    assert drafter.propose(history, 1) == (5,)
    for last in (7, 8, 9, 10):
        other = History(())
        other.extend((1, 2, last))
        drafter.end(other)
    assert drafter.propose(history, 1) == ()  # 5 has 2 of 7


def test_suffix_statistics_are_bounded():
    drafter = SuffixDrafter(capacity=100)
    history = History(())
    for start in range(0, 5000, 50):
        history.extend(tuple(range(start, start + 50)))
        drafter.propose(history, 1)
        assert len(drafter) <= 100
    assert drafter.propose(history, 1) == ()
    old = History(())
    old.extend((1, 2))
    assert drafter.propose(old, 1) == ()  # forgotten long ago
