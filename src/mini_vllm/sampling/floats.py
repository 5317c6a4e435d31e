"""Float32 arithmetic in a fixed order, so that NumPy and the native sampler agree to the last bit.

Library exponentials and sums differ between processors and split rows differently for different shapes; these do not.
This module must not know what the numbers mean.
"""

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

FLOAT_MAX = np.float32(np.finfo(np.float32).max)
NEVER = np.float32(-np.inf)  # the logit of a token that cannot be chosen
BLOCK = 64
EXP_FLOOR = np.float32(-87.0)  # below it e^x counts as 0
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds to the nearest integer
_EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def clean(logits: Float32Array) -> Float32Array:
    """A copy in which NaN is -inf (never chosen) and +inf is the largest float."""
    return np.where(logits > -np.inf, np.minimum(logits, FLOAT_MAX), NEVER)


def exp_nonpositive(x: Float32Array) -> Float32Array:
    """e^x for x ≤ 0, exactly 0 below -87 and exactly 1 at 0; error ≤ 2 units in the last place.

    e^x = 2^n e^r with n = round(x / ln 2); e^r by a polynomial (the coefficients of Cephes' expf).
    """
    inside = np.maximum(x, EXP_FLOOR)
    n = (inside * np.float32(1.44269504088896341) + _ROUND) - _ROUND
    r = (inside - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)
    poly = np.full_like(r, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        poly = poly * r + np.float32(term)
    value = (poly * (r * r) + r) + np.float32(1.0)
    power = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.where(x >= EXP_FLOOR, value * power, np.float32(0.0))


def lane_sum(x: Float32Array) -> float:
    """Sum of a vector [N] of float32, in float64 but for its first step, in one fixed order.

    In each block of 64, the four vectors of 16 are added in float32, (0 + 1) + (2 + 3); their sum goes to 16 lanes in
    float64, block after block; then the lanes are added in order.
    """
    padded = np.zeros(-(-x.size // BLOCK) * BLOCK, dtype=np.float32)
    padded[: x.size] = x
    a, b, c, d = padded.reshape(-1, 4, BLOCK // 4).transpose(1, 0, 2)
    lanes = np.add.reduce(((a + b) + (c + d)).astype(np.float64), axis=0)
    total = 0.0
    for lane in lanes.tolist():
        total += lane
    return total
