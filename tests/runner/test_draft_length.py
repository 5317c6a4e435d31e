"""How many guesses pay, on recorded costs and acceptance."""

import random
from itertools import pairwise

import pytest

from mini_vllm.runner.draft_length import Account, DraftLength, prices
from mini_vllm.runner.step_costs import StepCosts


def costs_of(row: float, *, guess: float = 0.0) -> StepCosts:
    """Every further row of a step costs `row` of the first, a guess `guess` of it."""
    costs = StepCosts()
    for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64):
        costs.observe(n, 1.0 + row * (n - 1))
    costs.guess = guess
    return costs


def choose(length: DraftLength, costs: StepCosts, *, num_sequences: int = 1) -> int:
    """For the first sequence of the next step."""
    found = prices(costs, length.most, num_sequences=num_sequences, num_rows=num_sequences)
    return length.choose(found, num_sequences=num_sequences)


def play(acceptance: float, costs: StepCosts, *, seed: int, steps: int = 400, num_sequences: int = 1):
    """The lengths of every step, and what they were settled on, where each guess stands with one probability."""
    source, length = random.Random(seed), DraftLength(6)
    chosen, settled = [], []
    for _ in range(steps):
        count = choose(length, costs, num_sequences=num_sequences)
        stood = 0
        while stood < count and source.random() < acceptance:
            stood += 1
        length.observe(count, stood)
        chosen.append(count)
        settled.append(length.current)
    return chosen, settled


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("row", [0.03, 0.15, 0.4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_constant_acceptance_the_length_settles(acceptance, row, seed):
    _, settled = play(acceptance, costs_of(row), seed=seed)
    changes = sum(a != b for a, b in pairwise(settled[20:]))
    assert changes <= 3


def test_cheap_rows_and_good_guesses_go_far_and_dear_or_bad_ones_nowhere():
    assert play(0.9, costs_of(0.05), seed=1)[0][-1] == 6
    assert play(0.9, costs_of(1.0), seed=1)[1][-1] == 0
    assert play(0.02, costs_of(0.2), seed=1)[1][-1] == 0
    assert play(0.9, costs_of(0.05, guess=1.0), seed=1)[1][-1] == 0


def test_a_large_batch_that_pays_for_every_row_stops_guessing():
    """Rows that cost what a token costs: at 32 sequences nothing is gained, at 1 all rows are nearly free."""
    costs = StepCosts()
    for n in (1, 2, 4, 8):
        costs.observe(n, 1.0 + 0.01 * n)
    for n in (16, 32, 48, 64):
        costs.observe(n, 1.1 * n / 12)
    assert play(0.7, costs, seed=2)[0][-1] > 2
    assert play(0.7, costs, seed=2, num_sequences=32)[1][-1] == 0


def test_bad_guesses_are_tried_again_now_and_then_at_little_cost():
    chosen, _ = play(0.0, costs_of(0.3), seed=1)
    late = chosen[100:]
    assert 0 < sum(late) <= len(late) / 30  # a row of 0.3 of a step in 40: 1 %


def test_it_recovers_when_text_begins_to_repeat():
    length, costs = DraftLength(6), costs_of(0.1)
    for _ in range(100):
        length.observe(choose(length, costs), 0)
    assert length.current == 0
    chosen = []
    for _ in range(400):
        count = choose(length, costs)
        length.observe(count, count)
        chosen.append(count)
    assert chosen[-1] == 6


def test_what_is_tried_in_vain_is_tried_ever_more_rarely():
    chosen, _ = play(0.0, costs_of(0.05), seed=1, steps=4000)
    tries = [step for step, count in enumerate(chosen) if count]
    gaps = [later - earlier for earlier, later in pairwise(tries[-5:])]
    assert gaps == sorted(gaps) and gaps[-1] >= 4 * gaps[0]
    assert sum(chosen[2000:]) <= 2


def test_costs_between_and_beyond_measured_rows():
    costs = StepCosts()
    assert costs.seconds(3) == pytest.approx(1.2)  # nothing is known: a tenth for every row
    costs.observe(1, 2.0)
    costs.observe(5, 4.0)
    assert costs.seconds(3) == pytest.approx(3.0)
    assert costs.seconds(10) == pytest.approx(4.0 * 1.4)
    assert not costs.knows(5)
    costs.observe(5, 100.0)  # somebody else used the machine
    assert costs.seconds(5) < 8.0
    for _ in range(200):
        costs.observe(5, 4.0)
    assert costs.knows(5) and costs.seconds(5) == pytest.approx(4.0, rel=0.01)


def test_costs_of_a_machine_that_slows_down_and_of_a_row_that_grows_cheaper():
    """Five rows tell the pace of one too; but when both are seen, each gets its own price."""
    costs = StepCosts()
    for _ in range(20):
        costs.observe(1, 1.0)
        costs.observe(5, 2.0)
    for _ in range(100):
        costs.observe(5, 6.0)
    assert costs.seconds(1) > 1.5
    for _ in range(200):
        costs.observe(1, 3.0)
        costs.observe(5, 3.3)
    assert costs.seconds(1) == pytest.approx(3.0, rel=0.02)
    assert costs.seconds(5) == pytest.approx(3.3, rel=0.02)


def test_no_more_is_lost_than_a_share_of_the_time():
    """Every step with guesses costs 30 % more and brings nothing."""
    account, extra, steps = Account(), 0.0, 5000
    for _ in range(steps):
        lost = 0.3 if account.allows else 0.0
        account.book(1.0, cost=lost, gain=0.0)
        extra += lost
    assert 0.5 < extra < 0.01 * steps
    for _ in range(100):
        account.book(1.0, cost=0.3, gain=1.0)
    assert account.allows
    account.spend(9.0)  # credit from better times is soon used up
    assert account.allows
    account.spend(2.0)
    assert not account.allows
