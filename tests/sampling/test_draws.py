"""Draws: the distribution, reproducibility, independence of the batch."""

import numpy as np
import pytest

from mini_vllm.errors import MissingDependencyError
from mini_vllm.sampling import derive_noise_key, make_sampler
from mini_vllm.sampling.noise import gumbel, position_key, token_bits
from mini_vllm.types import Admission, SamplingParams

CHI_SQUARE_999 = {3: 16.27, 9: 27.88, 15: 37.70}  # 99.9% quantiles by degrees of freedom


@pytest.fixture(params=["numpy", "native"])
def backend(request):
    try:
        make_sampler(limit=8, backend=request.param)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture
def count(backend):
    """Draws: the reference is slow."""
    return 5_000 if backend == "numpy" else 20_000


def draw(logits, params, *, keys, positions, backend):
    """One token per key and position for one row of logits."""
    sampler = make_sampler(limit=len(logits), backend=backend)
    for slot, key in enumerate(keys):
        sampler.states.admit(slot, Admission(slot, (1,), params, (), (), key))
    slots = np.arange(len(keys), dtype=np.int32)
    rows = np.tile(np.float32(logits), (len(keys), 1))
    return sampler.sample(rows, slots, slots=slots, positions=np.asarray(positions, dtype=np.int32))[0]


def chi_square(tokens, probabilities):
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = np.asarray(probabilities) * len(tokens)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum())


@pytest.mark.parametrize("over", ["keys", "positions"])
def test_draws_follow_the_softmax(over, backend, count):
    logits = np.linspace(-2, 2, 10)
    probabilities = np.exp(logits / 1.3) / np.exp(logits / 1.3).sum()
    many = range(count)
    keys, positions = (many, [5] * count) if over == "keys" else ([5] * count, many)
    tokens = draw(logits, SamplingParams(temperature=1.3), keys=keys, positions=positions, backend=backend)
    assert chi_square(tokens, probabilities) < CHI_SQUARE_999[9]


def test_draws_follow_the_truncated_softmax(backend, count):
    logits = np.linspace(-2, 2, 10)
    probabilities = np.exp(logits)
    probabilities[:6] = 0
    tokens = draw(logits, SamplingParams(top_k=4), keys=range(count), positions=[1] * count, backend=backend)
    assert chi_square(tokens, probabilities / probabilities.sum()) < CHI_SQUARE_999[3]


def test_successive_draws_are_independent(backend, count):
    tokens = draw(np.zeros(4), SamplingParams(), keys=[9] * (count + 1), positions=range(count + 1), backend=backend)
    pairs = np.array(tokens[:-1]) * 4 + np.array(tokens[1:])
    assert chi_square(pairs, np.full(16, 1 / 16)) < CHI_SQUARE_999[15]


def test_noise_is_gumbel():
    noise = np.concatenate([gumbel(3, position, np.arange(50_000)) for position in range(4)])
    assert abs(noise.mean() - np.euler_gamma) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    assert np.isfinite(noise).all()


def test_noise_bits_are_pinned():
    """The C++ side must produce these too; changing them changes every seeded answer."""
    assert position_key(0x0123456789ABCDEF, 17) == (2473090308, 2669246)
    assert token_bits(0x0123456789ABCDEF, 17, np.array([0, 1, 49151])).tolist() == [2773304463, 1745012778, 4119864907]


def test_noise_bits_of_a_position_never_collide():
    assert len(set(token_bits(1, 2, np.arange(100_000)).tolist())) == 100_000


def test_smp_06_a_seeded_row_is_the_same_in_every_batch():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (33, 500)).astype(np.float32)
    params = [
        SamplingParams(temperature=0.8, top_p=0.95 if i % 2 else 1.0, top_k=40 if i % 3 else 0) for i in range(33)
    ]
    sampler = make_sampler(limit=500, backend="numpy")
    for i in range(33):
        sampler.states.admit(i, Admission(i, (1, 2), params[i], (), (), 1000 + i))
    slots, positions = np.arange(33, dtype=np.int32), np.full(33, 7, dtype=np.int32)
    together, _ = sampler.sample(logits, slots, slots=slots, positions=positions)
    zero = slots[:1]
    alone = [
        sampler.sample(logits[i : i + 1], zero, slots=slots[i : i + 1], positions=positions[:1])[0][0]
        for i in range(33)
    ]
    order = rng.permutation(33)
    order = order.astype(np.int32)
    shuffled, _ = sampler.sample(logits, order, slots=order, positions=positions)
    assert together == alone
    assert [together[i] for i in order] == shuffled


def test_smp_08_the_noise_key_covers_seed_choice_and_prompt():
    key = derive_noise_key(42, 0, [1, 2, 3])
    assert key == derive_noise_key(42, 0, (1, 2, 3))
    others = [(43, 0, [1, 2, 3]), (42, 1, [1, 2, 3]), (42, 0, [1, 2, 4]), (42, 0, [1, 2]), (-42, 0, [1, 2, 3])]
    assert len({key, *(derive_noise_key(*other) for other in others)}) == 6
    assert 0 <= key < 2**64


def test_smp_08_prompts_sharing_a_seed_draw_independently(backend, count):
    keys = [derive_noise_key(42, 0, [prompt]) for prompt in range(count)]
    tokens = draw(np.zeros(10), SamplingParams(), keys=keys, positions=[1] * count, backend=backend)
    assert chi_square(tokens, np.full(10, 0.1)) < CHI_SQUARE_999[9]


def test_logits_that_are_no_numbers_are_said_once(backend, caplog):
    greedy = SamplingParams(temperature=0)
    for logits in ([5, 0, -np.inf], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 0]):
        draw(logits, greedy, keys=[1], positions=[3], backend=backend)
    assert caplog.messages == []
    for broken in (np.nan, -np.inf):
        sampler = make_sampler(limit=3, backend=backend)
        sampler.states.admit(0, Admission(0, (1,), greedy, (), (), 7))
        zero, logits = np.zeros(1, dtype=np.int32), np.full((1, 3), broken, np.float32)
        for _ in range(3):
            assert sampler.sample(logits, zero, slots=zero, positions=zero)[0] == [0]
        [said] = caplog.messages
        assert said.startswith("the model's logits are not numbers") and "--dtype float32" in said
        caplog.clear()
