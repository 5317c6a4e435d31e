"""Sampling parameters: what is accepted, and how the rest is refused."""

import numpy as np
import pytest

from mini_vllm.errors import InvalidParameterError
from mini_vllm.types import SamplingParams


def test_numpys_numbers_become_plain_ones():
    params = SamplingParams(
        n=np.int64(2),
        max_tokens=np.int32(5),
        temperature=np.float32(0.5),
        top_p=np.float64(0.25),
        seed=np.uint64(2**64 - 1),
        stop_token_ids=np.array([1, 2]),
        logit_bias={np.int64(3): np.float32(1.5)},
    )
    assert (params.n, params.max_tokens, params.temperature, params.top_p) == (2, 5, 0.5, 0.25)
    assert (params.seed, params.stop_token_ids, params.logit_bias) == (2**64 - 1, (1, 2), {3: 1.5})
    plain = (params.n, params.max_tokens, params.temperature, params.top_p, *params.stop_token_ids, *params.logit_bias)
    assert {type(value) for value in plain} == {int, float}


@pytest.mark.parametrize(
    "field", ["stop", "stop_token_ids", "bad_token_ids", "allowed_token_ids", "logit_bias", "ignore_eos"]
)
@pytest.mark.parametrize("junk", [5, 1.5, b"ab", object()])
def test_values_of_another_kind_are_refused_by_name(field, junk):
    with pytest.raises(InvalidParameterError, match=f"^{field} is ") as caught:
        SamplingParams(**{field: junk})
    assert caught.value.param == field


@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty"])
@pytest.mark.parametrize("junk", [10**400, -(10**400), float("nan"), float("inf"), "1", True, None])
def test_what_is_no_finite_number_is_refused(field, junk):
    with pytest.raises(InvalidParameterError, match=f"^{field} is "):
        SamplingParams(**{field: junk})
