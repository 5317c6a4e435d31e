"""What stands between raw logits and the draw: an ordered list of pure functions over rows [rows, V].

    grammar mask → mask → logit bias → penalties → (greedy rows stop here) → temperature → top-k → top-p → min-p → draw

Each is skipped when no row uses it. This is the reference: the native sampler computes the same, row by row, to the
last bit. -inf marks a token that cannot be chosen. This module must not know models, requests or the scheduler.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.sampling.floats import EXP_FLOOR, FLOAT_MAX, NEVER, Float32Array, clean, exp_nonpositive, lane_sum
from mini_vllm.sampling.noise import gumbel
from mini_vllm.sampling.state import SamplingState

Bits = npt.NDArray[np.uint32]  # [words]


def choose(
    logits: Float32Array,
    states: Sequence[SamplingState],
    positions: Sequence[int],
    grammars: Sequence[Bits | None] = (),
) -> list[int]:
    """The next token of each row [rows, V]; positions are those of the tokens being chosen. Leaves logits alone."""
    rows = clean(logits)
    rows = obey(rows, grammars)
    rows = mask(rows, states, positions)
    rows = add_bias(rows, states)
    rows = penalise(rows, states)
    tokens = [0] * len(states)
    for index, (row, state, position) in enumerate(zip(rows, states, positions)):
        best = int(np.argmax(row))
        if row[best] == NEVER:
            tokens[index] = state.fallback_id
        elif state.greedy:
            tokens[index] = best
        else:
            scaled = temper(row, state)
            for keep in (keep_top_k, keep_top_p, keep_min_p):
                scaled = keep(scaled, state)
            tokens[index] = draw(scaled, state, position)
    return tokens


def obey(rows: Float32Array, grammars: Sequence[Bits | None]) -> Float32Array:
    """-inf for tokens whose bit is not set: bit i % 32 of word i // 32 is token i's. None: no grammar."""
    for row, words in zip(rows, grammars):
        if words is not None:
            allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: row.size].astype(bool)
            row[: allowed.size][~allowed] = NEVER
            row[allowed.size :] = NEVER
    return rows


def mask(rows: Float32Array, states: Sequence[SamplingState], positions: Sequence[int]) -> Float32Array:
    """-inf for tokens that are not allowed, banned, or would end the sequence before min_tokens."""
    for row, state, position in zip(rows, states, positions):
        if state.allowed is not None:
            kept = row[state.allowed]
            row[:] = NEVER
            row[state.allowed] = kept
        row[state.limit :] = NEVER
        row[state.banned] = NEVER
        if state.is_early(position):
            row[state.early] = NEVER
    return rows


def add_bias(rows: Float32Array, states: Sequence[SamplingState]) -> Float32Array:
    """Add each row's biases to its logits; a masked token stays masked."""
    for row, state in zip(rows, states):
        if state.bias_ids.size:
            row[state.bias_ids] += state.bias_values
    return rows


def penalise(rows: Float32Array, states: Sequence[SamplingState]) -> Float32Array:
    """Repetition over prompt and output: positive logits divided, others multiplied (Keskar et al. 2019, CTRL).

    Then frequency (times the count) and presence (once) over output only, subtracted.
    """
    for row, state in zip(rows, states):
        if not state.penalised:
            continue
        ids, counts = state.seen_ids[: state.num_seen], state.seen_counts[: state.num_seen]
        x = row[ids]
        with np.errstate(over="ignore"):
            x = np.where(x > 0, x / state.repetition, x * state.repetition)
            x = np.minimum(x, FLOAT_MAX)
            x = x - state.frequency * counts.astype(np.float32)
            x = np.where(counts > 0, x - state.presence, x)
        row[ids] = x
    return rows


def temper(row: Float32Array, state: SamplingState) -> Float32Array:
    """(x - max) / T in float32: ≤ 0, with no overflow whatever the temperature."""
    with np.errstate(over="ignore"):
        shifted: Float32Array = row - row.max()
        return shifted * state.inv_temperature


def keep_top_k(scaled: Float32Array, state: SamplingState) -> Float32Array:
    """The k largest; of equals the lowest ids."""
    if not 0 < state.top_k < scaled.size:
        return scaled
    order = np.argsort(-scaled, kind="stable")
    scaled[order[state.top_k :]] = NEVER
    return scaled


def keep_top_p(scaled: Float32Array, state: SamplingState) -> Float32Array:
    """The shortest prefix, in falling order, that holds at least p of the probability (Holtzman et al. 2019)."""
    if state.top_p >= 1.0:
        return scaled
    weights = exp_nonpositive(scaled)
    order = np.argsort(-scaled, kind="stable")
    sums = np.cumsum(weights[order], dtype=np.float64)
    total = float(sums[-1]) if 0 < state.top_k < scaled.size else lane_sum(weights)
    count = int(np.searchsorted(sums, state.top_p * total)) + 1
    scaled[order[count:]] = NEVER
    return scaled


def keep_min_p(scaled: Float32Array, state: SamplingState) -> Float32Array:
    """Tokens at least min_p times as likely as the likeliest."""
    if state.log_min_p == NEVER:
        return scaled
    return np.where(scaled >= state.log_min_p, scaled, NEVER)


def draw(scaled: Float32Array, state: SamplingState, position: int) -> int:
    """argmax(scaled + Gumbel noise); ties to the lowest id. Tokens below e^-87 of the likeliest never win."""
    ids = np.flatnonzero(scaled >= EXP_FLOOR)
    scores = scaled[ids].astype(np.float64) + gumbel(state.noise_key, position, ids)
    return int(ids[np.argmax(scores)])


__all__ = [
    "add_bias",
    "choose",
    "draw",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "mask",
    "obey",
    "penalise",
    "temper",
]
