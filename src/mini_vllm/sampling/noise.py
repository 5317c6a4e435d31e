"""Counter-based Gumbel noise: a pure function of (noise key, position, token id), the same in NumPy and in C++.

The draw of a token is argmax(scaled logit + noise), which has the softmax's distribution (the Gumbel-max trick:
Gumbel 1954; as a sampler, Maddison et al. 2014). Because the noise of a token depends on nothing but the request's key,
the position and the token's id, a request's randomness cannot depend on the batch, the chunking or preemption.

This module must not know models, requests or the scheduler.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_noise_key(seed: int, choice_index: int, prompt_token_ids: Sequence[int]) -> int:
    """64 bits that stand for all the randomness of one completion.

    The documented rule: the key covers the seed, the choice's index and the prompt's token ids. So the same seed and
    prompt give the same text at any place of any batch, while the items of a list of different prompts, and the n
    choices of one prompt, are driven by independent noise although they share a seed.
    """
    ids = array("I", prompt_token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    digest = hashlib.blake2b(digest_size=8)
    digest.update((seed % 2**64).to_bytes(8, "little"))
    digest.update(choice_index.to_bytes(4, "little"))
    digest.update(ids.tobytes())
    return int.from_bytes(digest.digest(), "little")


def position_key(noise_key: int, position: int) -> tuple[int, int]:
    """Two 32-bit words for one position: a SplitMix64 step (Steele, Lea and Flood 2014) from key + position."""
    z = (noise_key + _GOLDEN * (position + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


def token_bits(noise_key: int, position: int, token_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """32 hash bits per token id. Two keyed rounds of a bijection, so ids of one position never collide."""
    low, high = position_key(noise_key, position)
    bits = _mix(token_ids.astype(np.uint32) ^ np.uint32(low))
    return _mix(bits + np.uint32(high))


def gumbel(noise_key: int, position: int, token_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """-log(-log u) per token id, with 1 - u = (bits + 0.5) / 2^32.

    Written with log1p so that the tail that matters, u near 1 (large noise), keeps its full resolution.
    """
    tail = (token_bits(noise_key, position, token_ids).astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-tail))


def _mix(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """An avalanching bijection of 32 bits: xor-shift, multiply (constants found by Wellons' hash prospector)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
