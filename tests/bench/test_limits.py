import json

import pytest

from mini_vllm.bench import limits
from mini_vllm.bench.limits import Limits
from mini_vllm.errors import MissingDependencyError

PEAKS = {"f32": 1.0, "bf16": 2.0, "int8": 4.0}
CURVE = Limits(((10.0, 100.0), (20.0, 50.0), (40.0, 40.0)), PEAKS)


@pytest.mark.parametrize(("size", "rate"), [(1, 100), (10, 100), (15, 75), (20, 50), (30, 45), (40, 40), (99, 40)])
def test_bandwidth_is_linear_between_sizes_and_flat_beyond_them(size, rate):
    assert CURVE.bandwidth_at(size) == rate


def test_the_largest_buffer_stands_for_memory():
    assert CURVE.memory_bandwidth == 40.0


def test_the_best_of_two_measurements_is_taken_figure_by_figure():
    other = Limits(((10.0, 90.0), (20.0, 60.0), (40.0, 41.0)), {"f32": 2.0, "bf16": 1.0, "int8": 4.0})
    best = CURVE.best_of(other)
    assert best.bandwidth == ((10.0, 100.0), (20.0, 60.0), (40.0, 41.0))
    assert best.peaks == {"f32": 2.0, "bf16": 2.0, "int8": 4.0}


def test_lines_are_parsed_in_any_order_and_gaps_are_refused():
    lines = ["noise", *(json.dumps({"what": name, "rate": rate}) for name, rate in PEAKS.items())]
    with pytest.raises(ValueError, match="no complete set"):
        limits.parse(lines)
    lines += [json.dumps({"what": "read", "bytes": size, "rate": 7}) for size in (20, 10)]
    assert limits.parse(lines) == Limits(((10.0, 7.0), (20.0, 7.0)), PEAKS)


def test_the_program_measures_this_machine(tmp_path):
    found = limits.measure(1, cache=tmp_path, largest_mib=16)
    assert [size for size, _ in found.bandwidth] == [8 * limits.MIB, 16 * limits.MIB]
    assert all(1e8 < rate < 1e13 for _, rate in found.bandwidth)
    assert all(1e8 < rate < 1e15 for rate in found.peaks.values())
    assert limits.build(tmp_path) == next(tmp_path.iterdir()), "compiled once"


def test_a_missing_compiler_is_said_with_the_remedy():
    with pytest.raises(MissingDependencyError, match=r"needs a C\+\+ compiler; install one"):
        limits.find_compiler(["", "no-such-compiler"])
