"""Logprobs of raw logits."""

import json
import math

import numpy as np

from mini_vllm.sampling import LOGPROB_FLOOR, make_sampler
from mini_vllm.sampling.logprobs import score
from mini_vllm.types import Admission, SamplingParams


def test_scores_equal_the_log_softmax():
    logits = np.random.default_rng(0).normal(0, 4, (20, 777)).astype(np.float32)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    order = np.argsort(-logits, axis=1, kind="stable")
    tokens = order[np.arange(20), np.arange(20) * 3].tolist()
    for i, report in enumerate(score(logits, tokens, [5] * 20, limit=777)):
        assert abs(report.logprob - expected[i, tokens[i]]) < 1e-6 * max(1, abs(expected[i, tokens[i]]))
        assert report.rank == i * 3 + 1
        assert [token for token, _ in report.top] == order[i, :5].tolist()
        if report.rank <= 5:
            assert report.top[report.rank - 1] == (tokens[i], report.logprob)


def test_ties_go_to_the_lowest_id():
    (report,) = score(np.float32([[1, 2, 2, 2]]), [2], [2], limit=4)
    assert report.rank == 2
    assert [token for token, _ in report.top] == [1, 2]
    assert report.top[1][1] == report.logprob


def test_padding_is_summed_but_never_listed():
    (report,) = score(np.float32([[0, 0, 5, 0]]), [1], [4], limit=2)
    assert [token for token, _ in report.top] == [0, 1]
    assert abs(report.logprob + math.log(3 + math.exp(5))) < 1e-6
    assert report.rank == 2


def test_lgp_01_no_infinity_is_ever_reported():
    rows = np.float32(
        [[0, -np.inf, 3e38, 1], [-np.inf] * 4, [np.nan] * 4, [np.inf, 0, 0, -np.inf], [0, -3e38, 3e38, 0]]
    )
    for report in score(rows, [1] * 5, [4] * 5, limit=4):
        values = [report.logprob, *(value for _, value in report.top)]
        assert all(LOGPROB_FLOOR <= value <= 0 for value in values)
        json.dumps(values, allow_nan=False)
    assert score(rows[:1], [1], [0], limit=4)[0].logprob == LOGPROB_FLOOR


def test_lgp_01_logprobs_are_of_raw_logits_whatever_the_transforms():
    logits = np.random.default_rng(0).normal(0, 2, (1, 50)).astype(np.float32)
    sampler = make_sampler(limit=50, backend="numpy")
    params = SamplingParams(
        temperature=0.01, top_p=0.3, logprobs=5, logit_bias={7: 100.0, 3: -100.0}, repetition_penalty=1.5
    )
    sampler.states.admit(0, Admission(0, (1, 2), params, (), (), 0))
    zero = np.zeros(1, dtype=np.int32)
    before = logits.copy()
    tokens, reports = sampler.sample(logits, zero, slots=zero, positions=zero + 2)
    assert tokens == [7]
    assert reports == score(before, [7], [5], limit=50)
    assert (logits == before).all()


def test_logprobs_only_for_those_who_asked():
    sampler = make_sampler(limit=4, backend="numpy")
    for slot, logprobs in enumerate([None, 0, 2]):
        sampler.states.admit(slot, Admission(slot, (1,), SamplingParams(temperature=0, logprobs=logprobs), (), (), 0))
    logits = np.float32([[0, 1, 2, 3]] * 3)
    rows = np.arange(3, dtype=np.int32)
    _, reports = sampler.sample(logits, rows, slots=rows, positions=rows + 1)
    assert reports[0] is None
    assert [len(report.top) for report in reports[1:] if report] == [0, 2]
