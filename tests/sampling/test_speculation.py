"""Speculation on a toy vocabulary: what stands is distributed as without guesses, whoever guessed."""

import numpy as np
import pytest

from mini_vllm.sampling import make_sampler, num_accepted
from mini_vllm.types import Admission, SamplingParams

VOCAB, TRIALS, CHUNK = 8, 100_000, 10_000
PARAMS = SamplingParams(temperature=0.7, top_k=6, top_p=0.92)
TARGET = np.float32([[1.0, 0.3, -0.5, 2.0, 0.1, 1.4, -2.0, 0.9], [0.2, 1.1, 0.7, -1.0, 1.9, 0.0, 0.4, -0.3]])
DRAFT = np.float32([[0.2, 1.3, 0.5, 1.0, 0.6, -0.4, 1.0, 0.0], [1.2, 0.1, 0.2, 0.3, 0.4, 1.5, 0.6, 0.7]])


def processed(logits: np.ndarray) -> np.ndarray:
    """The distribution that the parameters leave, computed the plain way. [V]"""
    scaled = logits.astype(np.float64) / PARAMS.temperature
    kept = np.argsort(-scaled)[: PARAMS.top_k]
    weights = np.exp(scaled[kept] - scaled[kept].max())
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    weights[before >= PARAMS.top_p] = 0.0
    found = np.zeros(VOCAB)
    found[kept] = weights / weights.sum()
    return found


def draw(sampler, logits: np.ndarray, position: int) -> list[int]:
    """One token for each of CHUNK sequences, all with the same logits [V]."""
    rows = np.zeros(CHUNK, np.int32)
    tokens, _ = sampler.sample(
        logits[None].copy(), rows, slots=np.arange(CHUNK, dtype=np.int32), positions=np.full(CHUNK, position, np.int32)
    )
    return tokens


@pytest.mark.parametrize("same_noise", [True, False], ids=["draft draws with the target's noise", "with its own"])
def test_spc_03_and_spc_05_output_has_the_targets_distribution(same_noise):
    """Many steps of two guesses from another distribution; the first two tokens that stand, against the target."""
    first, second = np.zeros(VOCAB), np.zeros(VOCAB)
    accepted = 0
    rng = np.random.default_rng(5)
    for _trial in range(TRIALS // CHUNK):
        sampler = make_sampler(limit=VOCAB)
        for slot in range(CHUNK):
            key = int(rng.integers(2**63))
            sampler.states.admit(slot, Admission(slot, (1,), PARAMS, (), (), key))
        if same_noise:
            guesses = [draw(sampler, DRAFT[0], 1), draw(sampler, DRAFT[1], 2)]
        else:
            guesses = [rng.choice(VOCAB, CHUNK, p=processed(DRAFT[i])).tolist() for i in range(2)]
        chosen = [draw(sampler, TARGET[0], 1), draw(sampler, TARGET[1], 2), draw(sampler, TARGET[0], 3)]
        for drafts, tokens in zip(zip(*guesses), zip(*chosen)):
            stood = tokens[: num_accepted(drafts, tokens)]
            first[stood[0]] += 1
            if len(stood) > 1:
                second[stood[1]] += 1
                accepted += 1
    for counts, logits in ((first, TARGET[0]), (second, TARGET[1])):
        expected = processed(logits) * counts.sum()
        assert np.all(counts[expected == 0] == 0)
        live = expected > 0
        chi_square = float(((counts - expected)[live] ** 2 / expected[live]).sum())
        assert chi_square < 24.3, (chi_square, counts, expected)  # 7 degrees of freedom at most: p > 0.001
    share = accepted / TRIALS
    agreement = float((processed(DRAFT[0]) * processed(TARGET[0])).sum())
    if same_noise:
        assert share > agreement + 0.05  # shared noise makes them agree more often than chance
    else:
        assert abs(share - agreement) < 0.01
