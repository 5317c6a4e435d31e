"""KV cache sizing."""

from pathlib import Path

import pytest

from mini_vllm.config import CacheConfig
from mini_vllm.errors import ConfigError
from mini_vllm.kernels.table import KVShape
from mini_vllm.runner.storage import choose_num_blocks, free_memory, kv_format

SHAPE = KVShape(num_layers=30, num_kv_heads=3, head_dim=64, num_blocks=0, block_size=16, dtype="bf16")
BLOCK = 2 * 30 * 3 * 64 * 16 * 2
ALL = frozenset({"f32", "f16", "bf16"})


def choose(*, max_model_len=1024, max_num_seqs=8, free_bytes=2**34, **cache):
    return choose_num_blocks(
        CacheConfig(**cache), SHAPE, max_model_len=max_model_len, max_num_seqs=max_num_seqs, free_bytes=free_bytes
    )


def test_explicit_number_is_obeyed():
    assert choose(num_blocks=7) == 7
    assert choose(num_blocks=10**6, free_bytes=2**40) == 10**6


@pytest.mark.parametrize("asked", [{"num_blocks": 2001}, {"kv_cache_memory": "1TiB"}])
def test_more_than_memory_holds_is_refused_before_it_is_half_used(asked):
    [name] = asked
    with pytest.raises(ConfigError, match=rf"{name} asks for .* MiB, but 703 MiB are free; lower it"):
        choose(free_bytes=2000 * BLOCK, max_num_seqs=1000, **asked)


def test_a_pool_beyond_32_bits_is_refused():
    with pytest.raises(ConfigError, match="num_blocks asks for 16000000000000 tokens of KV cache; at most 2147483647"):
        choose(num_blocks=10**12, free_bytes=2**63)


def test_no_more_than_all_sequences_need():
    assert choose() == 8 * 64
    assert choose(max_model_len=1025) == 8 * 65


def test_budget_in_bytes_and_share_of_free_memory():
    assert choose(kv_cache_memory="64MiB") == 64 * 2**20 // BLOCK
    assert choose(free_bytes=200 * BLOCK) == 100
    assert choose(free_bytes=200 * BLOCK, kv_cache_memory_share=1.0) == 200


def test_too_small_a_budget_names_the_numbers_and_the_remedy():
    with pytest.raises(
        ConfigError, match=r"holds 160 tokens.*max_model_len 1024.*set max_model_len to 160 or less"
    ) as e:
        choose(kv_cache_memory=str(10 * BLOCK))
    assert e.value.param == "kv_cache_memory"
    with pytest.raises(ConfigError, match="raise kv_cache_memory_share"):
        choose(free_bytes=3)


def test_kv_format_follows_the_weights():
    assert [kv_format("auto", form, ALL) for form in ("f32", "f16", "bf16", "q4_1", "q8_0")] == [
        "f32", "f16", "bf16", "bf16", "bf16",
    ]  # fmt: skip
    assert kv_format("float32", "q4_1", ALL) == "f32"
    assert kv_format("int8", "q4_1", ALL | {"q8"}) == "q8"
    assert kv_format("auto", "q4_1", frozenset({"f32"})) == "f32"
    with pytest.raises(ConfigError, match=r"kv_cache_dtype is int8 .* float32, float16, bfloat16 only"):
        kv_format("int8", "f32", ALL)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype is float16 .* float32 only"):
        kv_format("float16", "f32", frozenset({"f32"}))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"}


def test_free_memory_of_a_machine_without_limits(tmp_path):
    assert free_memory(write(tmp_path, {**MACHINE, "proc/self/cgroup": "0::/\n"})) == 8_000_000 * 1024


def test_free_memory_under_a_container_limit(tmp_path):
    groups = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/memory.max": "4000000000\n",
        "sys/fs/cgroup/outer/memory.current": "3000000000\n",
        "sys/fs/cgroup/outer/memory.stat": "anon 5\ninactive_file 500000000\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "2000000000\n",
    }
    assert free_memory(write(tmp_path, {**MACHINE, **groups})) == 1_500_000_000


def test_free_memory_inside_a_container_whose_path_is_the_hosts(tmp_path):
    groups = {
        "proc/self/cgroup": "0::/docker/abc\n",
        "sys/fs/cgroup/memory.max": "2000000000\n",
        "sys/fs/cgroup/memory.current": "500000000\n",
    }
    assert free_memory(write(tmp_path, {**MACHINE, **groups})) == 1_500_000_000


def test_free_memory_under_version_1_groups(tmp_path):
    groups = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory,hugetlb:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000000\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000000000\n",
    }
    assert free_memory(write(tmp_path, {**MACHINE, **groups})) == 2_000_000_000


def test_free_memory_of_this_machine_is_plausible():
    assert 2**24 < free_memory() < 2**50


def test_int8_blocks_hold_a_byte_an_element_and_a_scale_for_each_head_of_a_token():
    bfloat16, int8 = (KVShape(30, 3, 64, 1, 16, dtype).bytes_per_block for dtype in ("bf16", "q8"))
    assert bfloat16 == 2 * 30 * 3 * 16 * 64 * 2
    assert int8 == 2 * 30 * 3 * 16 * (64 + 4)
