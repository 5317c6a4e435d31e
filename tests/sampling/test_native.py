"""The native sampler against the reference, to the last bit, on thousands of rows."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mini_vllm.errors import MissingDependencyError
from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.native_abi import bind_library
from mini_vllm.kernels.native_library import load_library
from mini_vllm.sampling import logprobs, transforms
from mini_vllm.sampling.native import NativeBackend
from mini_vllm.sampling.sampler import NumpyBackend
from mini_vllm.sampling.state import ROW_RECORD, SamplingState, SamplingStates
from mini_vllm.types import Admission, SamplingParams

NEVER = -np.inf
WIDTHS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 300, 1000, 4099]


@pytest.fixture(scope="module")
def native():
    try:
        return NativeBackend(load_library())
    except MissingDependencyError as error:
        pytest.skip(str(error))


def random_row(rng, vocab):
    kind = rng.integers(8)
    if kind == 0:
        row = np.full(vocab, rng.normal())  # all equal
    elif kind == 1:
        row = rng.integers(-2, 3, vocab)  # many ties
    elif kind == 2:
        row = np.clip(rng.normal(0, 1e38, vocab), -3e38, 3e38)  # huge
    elif kind == 3:
        row = rng.normal(0, 1e-6, vocab)
    elif kind == 4:
        row = np.where(rng.random(vocab) < 0.9, NEVER, rng.normal(0, 3, vocab))
    elif kind == 5:
        row = np.full(vocab, NEVER)
        row[rng.integers(vocab)] = rng.normal()  # one candidate
    elif kind == 6:
        row = rng.normal(0, 30, vocab)  # much below e^-87
        row[rng.integers(vocab, size=2)] = [np.nan, np.inf]
    else:
        row = rng.normal(0, rng.choice([0.5, 2, 6]), vocab)
    return row.astype(np.float32)


def random_params(rng, vocab):
    ids = lambda most: tuple(rng.integers(0, vocab, rng.integers(1, most)).tolist())  # noqa: E731
    options = {"temperature": float(rng.choice([0, 0.01, 0.7, 1, 1.7, 50]))}
    choices = {
        "top_k": lambda: int(rng.choice([1, 2, 5, 40, vocab - 1, vocab, vocab + 1, 10**9])),
        "top_p": lambda: float(rng.choice([1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-12])),
        "min_p": lambda: float(rng.choice([1e-9, 0.05, 0.5, 1.0])),
        "repetition_penalty": lambda: float(rng.choice([0.5, 1.1, 3.0, 1e6])),
        "presence_penalty": lambda: float(rng.uniform(-2, 2)),
        "frequency_penalty": lambda: float(rng.uniform(-2, 2)),
        "logit_bias": lambda: {i: float(rng.uniform(-60, 60)) for i in ids(9)},
        "allowed_token_ids": lambda: ids(40),
        "bad_token_ids": lambda: ids(9),
        "min_tokens": lambda: 3,
    }
    for name, choice in choices.items():
        if rng.random() < 0.3:
            options[name] = choice()
    return SamplingParams(max_tokens=99, **options)


def random_states(rng, count, vocab, limit):
    states = SamplingStates(limit=limit, capacity=2)
    for slot in range(count):
        ids = lambda most: tuple(rng.integers(0, vocab, rng.integers(most)).tolist())  # noqa: E731
        key = int(rng.integers(2**63)) * 2 + slot % 2
        states.admit(slot, Admission(slot, ids(60), random_params(rng, vocab), ids(3), ids(3), key))
        states.observe(slot, ids(200))
    return states


@pytest.mark.parametrize("vocab", WIDTHS)
def test_choices_equal_the_reference(native, vocab):
    rng = np.random.default_rng(vocab)
    count = 300
    for limit in (vocab, max(1, vocab - vocab // 5)):
        states = random_states(rng, count, vocab, limit)
        logits = np.stack([random_row(rng, vocab) for _ in range(count)])
        slots = rng.permutation(count).astype(np.int32)
        lengths = [states[int(slot)].prompt_len for slot in slots]
        positions = (np.array(lengths) + rng.integers(0, 6, count)).astype(np.int32)
        rows = rng.permutation(count).astype(np.int32)
        before = logits.copy()
        chosen = native.choose(logits, rows, states, slots, positions)
        expected = transforms.choose(logits[rows], [states[int(slot)] for slot in slots], positions.tolist())
        assert chosen == expected
        assert np.array_equal(logits, before, equal_nan=True)
        assert max(chosen) < limit


def test_choices_equal_the_reference_on_a_real_vocabulary(native):
    rng = np.random.default_rng(1)
    for _ in range(3):
        states = random_states(rng, 32, 49152, 49152)
        logits = np.stack([random_row(rng, 49152) for _ in range(32)])
        slots = np.arange(32, dtype=np.int32)
        positions = np.array([states[i].prompt_len for i in range(32)], dtype=np.int32)
        expected = transforms.choose(logits, [states[i] for i in range(32)], positions.tolist())
        assert native.choose(logits, slots, states, slots, positions) == expected


@pytest.mark.parametrize("vocab", WIDTHS)
def test_scores_equal_the_reference(native, vocab):
    rng = np.random.default_rng(vocab)
    logits = np.stack([random_row(rng, vocab) for _ in range(200)])
    rows = rng.permutation(200).astype(np.int32)
    tokens = rng.integers(0, vocab, 200).tolist()
    counts = rng.integers(0, 21, 200).tolist()
    for limit in (vocab, max(1, vocab - 3)):
        expected = logprobs.score(logits[rows], tokens, counts, limit=limit)
        assert native.score(logits, rows, tokens, counts, limit=limit) == expected


def test_scores_of_no_rows(native):
    assert native.score(np.zeros((1, 4), dtype=np.float32), np.zeros(0, dtype=np.int32), [], [], limit=4) == []


def test_a_row_does_not_depend_on_other_rows_or_their_stride(native):
    rng = np.random.default_rng(2)
    states = random_states(rng, 33, 1000, 1000)
    wide = rng.normal(0, 3, (33, 1024)).astype(np.float32)
    logits = wide[:, :1000]
    slots = np.arange(33, dtype=np.int32)
    positions = np.full(33, 99, dtype=np.int32)
    together = native.choose(logits, slots, states, slots, positions)
    alone = [
        native.choose(logits[i : i + 1].copy(), slots[:1], states, slots[i : i + 1], positions[:1])[0]
        for i in range(33)
    ]
    assert together == alone


def test_threads_change_nothing(native):
    shared = NativeBackend(load_library(), team=NativeDevice(threads=2).team)
    rng = np.random.default_rng(4)
    for count in (1, 2, 3, 40):
        states = random_states(rng, count, 3000, 3000)
        logits = np.stack([random_row(rng, 3000) for _ in range(count)])
        slots = np.arange(count, dtype=np.int32)
        positions = np.full(count, 99, dtype=np.int32)
        expected = native.choose(logits, slots, states, slots, positions)
        scores = native.score(logits, slots, [5] * count, [4] * count, limit=3000)
        for _ in range(20):
            assert shared.choose(logits, slots, states, slots, positions) == expected
            assert shared.score(logits, slots, [5] * count, [4] * count, limit=3000) == scores


def test_every_instruction_set_gives_the_same_bits(native):
    program = """
import numpy as np
from sampling.test_native import NativeBackend, load_library, random_row, random_states
rng = np.random.default_rng(8)
native = NativeBackend(load_library())
states = random_states(rng, 200, 1500, 1490)
logits = np.stack([random_row(rng, 1500) for _ in range(200)])
rows = np.arange(200, dtype=np.int32)
print(native.choose(logits, rows, states, rows, rows))
print(native.score(logits, rows, rows.tolist(), [7] * 200, limit=1490))
"""
    outputs = set()
    for isa in ("portable", *bind_library().mv_isa_names().decode().split()):
        environment = {**os.environ, "MINI_VLLM_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(ran.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop()) > 10_000


def test_drafts_are_seen_by_a_state_in_no_slot(native):
    state = SamplingState(
        Admission(0, (1,), SamplingParams(temperature=0, presence_penalty=2.0), (), (), 0), limit=4
    ).with_drafts([3])
    logits = np.float32([[9, 9, 9, 9], [0, 1, 2, 3]])
    assert native.choose_one(logits, 1, state, 2) == 2


def test_records_have_the_size_of_the_struct():
    assert ROW_RECORD.itemsize == 8 * 10 + 4 * 16


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.8}, {"logit_bias": {3: 9.0}}])
def test_grammar_bits_mean_the_same_to_both(native, params):
    rng = np.random.default_rng(3)
    vocab, limit, num_rows = 1000, 971, 12
    logits = rng.normal(0, 3, (num_rows, vocab)).astype(np.float32)
    states = SamplingStates(limit=limit)
    for slot in range(num_rows):
        states.admit(slot, Admission(slot, (1,), SamplingParams(**params), (), (), slot))
    slots = np.arange(num_rows, dtype=np.int32)
    bits = [rng.integers(0, 2**32, 31, dtype=np.uint64).astype(np.uint32) for _ in range(num_rows)]
    bits[0] = None
    bits[1][:] = 0
    bits[1][limit // 32] = 1 << (limit % 32 - 1)  # the last token that may be chosen at all
    bits[2][:] = 0xFFFFFFFF
    bits[3][5:] = 0
    chosen = native.choose(logits, slots, states, slots, slots, grammars=bits)
    assert chosen == NumpyBackend().choose(logits, slots, states, slots, slots, grammars=bits)
    assert chosen[1] == limit - 1 and chosen[3] < 160
    for row, token in zip(bits[1:], chosen[1:]):
        assert row[token // 32] >> (token % 32) & 1
    for row in range(num_rows):
        assert native.choose_one(logits, row, states[row], row, grammar=bits[row]) == chosen[row]
