import pytest

from mini_vllm.bench import roofline
from mini_vllm.bench.limits import Limits
from mini_vllm.bench.roofline import SMOLLM2, TINYLLAMA, Shape, Weights, limit
from mini_vllm.bench.workloads import BATCH8, BATCH32, PREFILL_512, PREFILL_2048, SINGLE, Work

MIB = 2**20
ZEN4 = Limits(
    ((67 * MIB, 50e9), (96 * MIB, 46e9), (135 * MIB, 36e9), (1024 * MIB, 36e9)),
    {"f32": 234e9, "bf16": 468e9, "int8": 935e9},
)
STORED = {
    "f32": Weights("f32", "f32", "f32"),
    "bf16": Weights("bf16", "bf16"),
    "q8_0": Weights("q8_0", "q8_0"),
    "q4_1": Weights("q4_1", "q8_0"),
}


def test_the_shape_of_the_default_model_has_its_published_sizes():
    assert SMOLLM2.layer_weights == 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536) == 106_168_320
    assert SMOLLM2.head_weights == 28_311_552
    assert SMOLLM2.kv_bytes(1, 2) == 30 * 2 * 3 * 64 * 2
    assert TINYLLAMA.layer_weights + 2 * TINYLLAMA.head_weights == 1_100_048_384 - 45 * 2048  # less its norms


def test_a_shape_reads_configs_with_and_without_the_optional_keys():
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 10,
    }  # fmt: skip
    assert Shape.from_config(config).num_kv_heads == 4
    assert Shape.from_config(config).head_dim == 16
    given = Shape.from_config(config | {"num_key_value_heads": 2, "head_dim": 32})
    assert (given.num_kv_heads, given.head_dim) == (2, 32)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("f32", (66, 329, 469, 1017, 826)),
        ("bf16", (132, 658, 937, 2034, 1653)),
        ("q8_0", (244, 1168, 1808, 3773, 2643)),
        ("q4_1", (456, 1501, 1808, 3773, 2643)),
    ],
)
def test_limits_of_the_default_model_equal_figures_computed_apart(stored, expected):
    works = (SINGLE, BATCH8, BATCH32, PREFILL_512, PREFILL_2048)
    found = tuple(round(limit(work, SMOLLM2, STORED[stored], ZEN4)) for work in works)
    assert found == expected


TOY = Shape(
    num_layers=1, hidden_size=2, intermediate_size=4, num_heads=1, num_kv_heads=1, head_dim=2, vocab_size=8
)  # 16 weights of attention + 24 of the MLP, and 16 of the head
FLAT = Limits(((1.0, 100.0), (1e9, 100.0)), {"f32": 1000.0, "bf16": 2000.0, "int8": 4000.0})


def test_a_step_of_the_toy_by_hand():
    assert (TOY.layer_weights, TOY.head_weights) == (40, 16)
    # 56 weights x 4 bytes + 10 tokens x (K and V of 2) x 4 bytes = 384 bytes at 100 per second
    weights = Weights("f32", "f32", "f32")
    assert roofline.step_seconds(1, 10, shape=TOY, weights=weights, limits=FLAT) == pytest.approx(3.84)
    # 1,000 streams: 224 + 160,000 bytes take 1,602.24 s; 2 x 56 x 1,000 + 4 x 2 x 10,000 operations take 192 s
    assert roofline.step_seconds(1000, 10, shape=TOY, weights=weights, limits=FLAT) == pytest.approx(1602.24)
    slow = Limits(FLAT.bandwidth, {name: 1.0 for name in FLAT.peaks})
    assert roofline.step_seconds(1, 10, shape=TOY, weights=weights, limits=slow) == pytest.approx(112 + 80)


def test_prefill_of_the_toy_by_hand():
    # (2 x 40 x 10 + 2 x 16) operations in int8 and 4 x 2 x 10 x 10 / 2 of attention in bfloat16
    assert roofline.prefill_seconds(10, TOY, Weights("q8_0", "q8_0"), FLAT) == pytest.approx(832 / 4000 + 400 / 2000)
    work = Work("prefill", "prompt", 1, 10, 1)
    assert limit(work, TOY, Weights("q8_0", "q8_0"), FLAT) == pytest.approx(10 / (0.208 + 0.2))


def test_output_rates_of_batches_include_prefill():
    work = Work("batch", "output", 2, 4, 6)
    weights = Weights("f32", "f32", "f32")
    step = roofline.step_seconds(2, 7, shape=TOY, weights=weights, limits=FLAT)
    prefill = roofline.prefill_seconds(4, TOY, weights, FLAT)
    assert limit(work, TOY, weights, FLAT) == pytest.approx(12 / (2 * prefill + 6 * step))


def test_block_formats_count_their_scales_and_are_multiplied_as_int8():
    assert Weights("q4_1", "q8_0").step_bytes(TOY) == 40 * 20 / 32 + 16 * 34 / 32
    assert [Weights(name, name).arithmetic for name in ("q4_0", "q8_0", "bf16", "f16", "f32")] == [
        "int8", "int8", "bf16", "f32", "f32",
    ]  # fmt: skip
