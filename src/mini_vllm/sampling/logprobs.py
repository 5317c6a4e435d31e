"""Log-probabilities of the raw logits in float32, before any transform.

A logprob is x - max - log(sum of e^(x - max)), over the model's whole vocabulary. The chosen token and the list of
alternatives go through the same expression, so equal tokens carry the same float. Ties go to the lowest id. Values
below `LOGPROB_FLOOR` (and the -inf of a token that cannot occur) are reported as `LOGPROB_FLOOR`: JSON has no -inf.
"""

import math
from collections.abc import Sequence

import numpy as np

from mini_vllm.sampling.floats import Float32Array, clean, exp_nonpositive, lane_sum
from mini_vllm.types import TokenLogprobs

LOGPROB_FLOOR = -9999.0


def score(logits: Float32Array, token_ids: Sequence[int], counts: Sequence[int], *, limit: int) -> list[TokenLogprobs]:
    """Logprob and rank of token_ids[i] in row i of logits [rows, V], with the counts[i] likeliest alternatives.

    Ranks and alternatives consider ids below `limit`; the sum runs over all V.
    """
    return [_score_row(row, token, count, limit) for row, token, count in zip(clean(logits), token_ids, counts)]


def _score_row(row: Float32Array, token_id: int, count: int, limit: int) -> TokenLogprobs:
    largest = row.max()
    if not largest > -np.inf:
        return TokenLogprobs(token_id=token_id, logprob=LOGPROB_FLOOR, rank=1)
    with np.errstate(over="ignore"):
        log_sum = float(largest) + math.log(lane_sum(exp_nonpositive(row - largest)))
    known = row[:limit]
    order = np.argsort(-known, kind="stable")[:count]
    top = tuple((int(i), _logprob(float(known[i]), log_sum)) for i in order)
    x = row[token_id]
    rank = 1 + int(np.count_nonzero(known > x)) + int(np.count_nonzero(known[:token_id] == x))
    return TokenLogprobs(token_id=token_id, logprob=_logprob(float(x), log_sum), rank=rank, top=top)


def _logprob(x: float, log_sum: float) -> float:
    return float(np.float32(max(x - log_sum, LOGPROB_FLOOR)))
