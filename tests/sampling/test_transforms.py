"""The reference transforms against five-line twins and the cases of other engines."""

import numpy as np
import pytest

from mini_vllm.sampling import make_sampler, transforms
from mini_vllm.sampling.floats import exp_nonpositive, lane_sum
from mini_vllm.sampling.state import SamplingState
from mini_vllm.types import Admission, SamplingParams

NEVER = -np.inf


def make_state(*, prompt=(1, 2), output=(), eos=(), stop=(), limit=None, vocab=8, key=7, **params):
    admission = Admission(0, tuple(prompt), SamplingParams(**params), tuple(eos), tuple(stop), key)
    state = SamplingState(admission, limit=limit or vocab)
    state.observe(output)
    return state


def row(*values):
    return np.array([values], dtype=np.float32)


def test_exp_is_exact_at_zero_and_close_elsewhere():
    x = -np.linspace(0, 86.9, 100_001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    assert exp_nonpositive(np.float32([0.0, -87.5, NEVER])).tolist() == [1.0, 0.0, 0.0]
    assert np.max(np.abs(exp_nonpositive(x) / expected - 1)) < 2.5e-7


def test_lane_sum_adds_in_its_documented_order():
    x = np.random.default_rng(0).random(1000, dtype=np.float32)
    lanes = [0.0] * 16
    blocks = np.concatenate([x, np.zeros(24, dtype=np.float32)]).reshape(-1, 4, 16)
    for a, b, c, d in blocks:
        lanes = [lane + float(value) for lane, value in zip(lanes, (a + b) + (c + d))]
    total = 0.0
    for lane in lanes:
        total += lane
    assert lane_sum(x) == total


def test_mask_allowed_banned_and_padding():
    state = make_state(allowed_token_ids=[1, 3, 5, 7], bad_token_ids=[3], limit=7)
    masked = transforms.mask(row(*range(8)), [state], [2])
    assert masked.tolist() == [[NEVER, 1, NEVER, NEVER, NEVER, 5, NEVER, NEVER]]


def test_eos_and_stop_tokens_are_masked_until_min_tokens():
    state = make_state(eos=[0], stop=[4], min_tokens=2, prompt=(1, 1, 1))
    for position, early in ((3, True), (4, True), (5, False)):
        masked = transforms.mask(row(*range(8)), [state], [position])
        assert (masked[0, [0, 4]] == NEVER).tolist() == [early, early]
        assert masked[0, 1] == 1


def test_min_tokens_gives_way_where_only_ending_tokens_are_allowed():
    state = make_state(allowed_token_ids=[4], stop=[4], min_tokens=3, max_tokens=3)
    assert transforms.choose(row(*range(8)), [state], [2]) == [4]


def test_bias_is_added_and_does_not_revive_a_masked_token():
    state = make_state(logit_bias={1: 2.5, 3: 100.0}, bad_token_ids=[3], temperature=0)
    rows = transforms.add_bias(transforms.mask(row(*[0] * 8), [state], [2]), [state])
    assert rows[0, 1] == 2.5
    assert rows[0, 3] == NEVER


def test_smp_10_penalties_over_prompt_and_output():
    logits = row(0, 0, 0, 0, 0, 4, -4, 4)
    repetition = make_state(prompt=[5, 6], output=[7], repetition_penalty=2.0)
    assert transforms.penalise(logits.copy(), [repetition])[0, 5:].tolist() == [2, -8, 2]
    presence = make_state(prompt=[5], output=[7, 7], presence_penalty=1.5)
    assert transforms.penalise(logits.copy(), [presence])[0, 5:].tolist() == [4, -4, 2.5]
    frequency = make_state(prompt=[5], output=[7, 7, 6], frequency_penalty=0.5)
    assert transforms.penalise(logits.copy(), [frequency])[0, 5:].tolist() == [4, -4.5, 3]


def test_smp_10_penalties_apply_from_the_first_step_and_to_late_output():
    state = make_state(prompt=[5], repetition_penalty=2.0, temperature=0)
    assert transforms.choose(row(0, 0, 0, 0, 0, 4, 3, 0), [state], [1]) == [6]
    state.observe([6, *range(100, 300), 6])
    assert state.num_seen == 2  # ids beyond the vocabulary are not counted
    assert transforms.choose(row(0, 0, 0, 1.75, 0, 3, 3, 0), [state], [4]) == [3]


def test_the_smallest_repetition_penalty_makes_no_nan():
    state = make_state(prompt=[1, 2], bad_token_ids=[1], repetition_penalty=1e-300)
    x = transforms.penalise(transforms.mask(row(0, 5, -5, 1), [state], [2]), [state])
    assert x[0, 1] == NEVER
    assert not np.isnan(x).any()


def test_drafts_count_as_output_for_penalties_and_leave_the_state_alone():
    state = make_state(prompt=[1], output=[2], frequency_penalty=1.0)
    later = state.with_drafts([2, 3])
    assert transforms.penalise(row(*[5] * 8), [later])[0, :5].tolist() == [5, 5, 3, 4, 5]
    assert transforms.penalise(row(*[5] * 8), [state])[0, :5].tolist() == [5, 5, 4, 5, 5]


def test_greedy_takes_the_lowest_id_of_a_tie():
    assert transforms.choose(row(0, 3, 1, 3), [make_state(vocab=4, temperature=0)], [2]) == [1]
    assert transforms.choose(row(0, 3, 1, 3), [make_state(vocab=4, top_k=1)], [2]) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
def test_smp_01_tiny_temperatures_are_greedy(temperature):
    logits = np.random.default_rng(3).normal(0, 5, (64, 1000)).astype(np.float32)
    states = [make_state(vocab=1000, temperature=temperature, key=i) for i in range(64)]
    assert transforms.choose(logits, states, [9] * 64) == logits.argmax(1).tolist()


@pytest.mark.parametrize("temperature", [0.002, 1.0, 2.0, 100.0, 1e6])
def test_smp_01_no_temperature_overflows(temperature):
    for scale in (1e-30, 1.0, 1e4, 1e38):
        logits = (np.random.default_rng(3).normal(0, 1, (1, 1000)) * scale).astype(np.float32)
        state = make_state(vocab=1000, temperature=temperature, top_p=0.9, min_p=0.01)
        with np.errstate(all="raise", under="ignore", over="ignore"):
            scaled = transforms.temper(logits[0], state)
            assert not np.isnan(scaled).any()
            assert scaled.max() == 0
            assert 0 <= transforms.choose(logits, [state], [9])[0] < 1000


def test_smp_04_top_k_off_clamped_and_one():
    scaled = np.float32([0, -1, -1, -2])
    for top_k, kept in ((0, 4), (-1, 4), (1, 1), (2, 2), (4, 4), (5, 4), (10**9, 4)):
        state = make_state(vocab=4, top_k=top_k)
        assert np.isfinite(transforms.keep_top_k(scaled.copy(), state)).sum() == kept
    assert np.isfinite(transforms.keep_top_k(scaled.copy(), make_state(top_k=2))).tolist() == [True, True, False, False]


def test_top_p_keeps_the_shortest_prefix():
    scaled = np.log(np.float32([0.1, 0.4, 0.2, 0.3])) - np.log(np.float32(0.4))
    for top_p, kept in ((1e-9, [1]), (0.39, [1]), (0.6, [1, 3]), (0.75, [1, 2, 3]), (0.95, [0, 1, 2, 3])):
        out = transforms.keep_top_p(scaled.copy(), make_state(vocab=4, top_p=top_p))
        assert np.flatnonzero(np.isfinite(out)).tolist() == kept


def test_top_p_of_equal_tokens_keeps_the_lowest_ids():
    out = transforms.keep_top_p(np.zeros(8, dtype=np.float32), make_state(top_p=0.5))
    assert np.isfinite(out).tolist() == [True] * 4 + [False] * 4


def test_top_p_counts_only_what_top_k_left():
    scaled = np.log(np.float32([0.4, 0.3, 0.2, 0.1])) - np.log(np.float32(0.4))
    state = make_state(vocab=4, top_k=2, top_p=0.57)  # 0.4 / 0.7 = 0.571
    assert (
        np.isfinite(transforms.keep_top_p(transforms.keep_top_k(scaled, state), state)).tolist() == [True] + [False] * 3
    )


def test_min_p_is_relative_to_the_likeliest():
    scaled = np.log(np.float32([0.5, 0.2, 0.04, 0.26])) - np.log(np.float32(0.5))
    assert np.isfinite(transforms.keep_min_p(scaled, make_state(vocab=4, min_p=0.1))).tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_nothing_to_choose_from_gives_the_fallback():
    for logits in (row(*[NEVER] * 8), row(*[np.nan] * 8)):
        assert transforms.choose(logits, [make_state()], [2]) == [0]
        assert transforms.choose(logits, [make_state(allowed_token_ids=[3, 6], bad_token_ids=[3])], [2]) == [6]
    assert transforms.choose(row(np.nan, 1, np.inf, 2), [make_state(vocab=4, temperature=0)], [2]) == [2]


def test_states_reuse_slots_and_grow():
    sampler = make_sampler(limit=8, backend="numpy")
    admission = Admission(0, (1,), SamplingParams(presence_penalty=1.0), (), (), 5)
    for slot in (0, 200):
        sampler.states.admit(slot, admission)
        sampler.states.observe(slot, [3, 3])
        assert sampler.states.records[slot]["num_seen"] == 2
    sampler.states.drop(0)
    assert sampler.states.records[0]["num_seen"] == 0
    sampler.states.admit(0, admission)
    assert sampler.states[0].seen_counts[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1}, True),  # what they leave holds the largest
        ({"temperature": 0.0, "min_tokens": 3}, False),  # eos is masked meanwhile
        ({"temperature": 1.0}, False),
        ({"temperature": 0.0, "logprobs": 0}, False),
        ({"temperature": 0.0, "presence_penalty": 0.1}, False),
        ({"temperature": 0.0, "logit_bias": {3: 1.0}}, False),
        ({"temperature": 0.0, "logit_bias": {8: 1.0}}, True),  # of no token
        ({"temperature": 0.0, "allowed_token_ids": [1, 2]}, False),
        ({"temperature": 0.0, "bad_token_ids": [1]}, False),
    ],
)
def test_who_takes_the_largest_logit_as_it_is(params, expected):
    state = make_state(eos=(5,), **params)
    assert state.takes_largest is expected
    if expected:
        logits = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
        for at, each in enumerate(logits):
            assert transforms.choose(each[None], [state], [2 + at], ()) == [int(each.argmax())]
