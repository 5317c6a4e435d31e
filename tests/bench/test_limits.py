import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mini_vllm.bench import limits
from mini_vllm.bench.limits import MIB, Gauge, Limits
from mini_vllm.bench.machine import tree_seconds
from mini_vllm.bench.process_rows import peak_bytes
from mini_vllm.errors import MissingDependencyError

PEAKS = {"f32": 1.0, "bf16": 2.0, "int8": 4.0}
CURVE = Limits(((10.0, 100.0), (20.0, 50.0), (40.0, 40.0)), PEAKS)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Where the program is, once it was compiled."""
    return tmp_path_factory.mktemp("limits")


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


def test_one_bandwidth_may_stand_for_every_size():
    flat = CURVE.with_bandwidth(7.0)
    assert [flat.bandwidth_at(size) for size in (1, 10, 99)] == [7.0] * 3
    assert flat.peaks == PEAKS


def test_lines_are_parsed_in_any_order_and_gaps_are_refused():
    lines = ["noise", *(json.dumps({"what": name, "rate": rate}) for name, rate in PEAKS.items())]
    with pytest.raises(ValueError, match="no complete set"):
        limits.parse(lines)
    lines += [json.dumps({"what": "read", "bytes": size, "rate": 7}) for size in (20, 10)]
    assert limits.parse(lines) == Limits(((10.0, 7.0), (20.0, 7.0)), PEAKS)


def test_the_program_measures_this_machine(built):
    found = limits.measure(1, cache=built, largest_mib=16)
    assert [size for size, _ in found.bandwidth] == [8 * limits.MIB, 16 * limits.MIB]
    assert all(1e8 < rate < 1e13 for _, rate in found.bandwidth)
    assert all(1e8 < rate < 1e15 for rate in found.peaks.values())
    assert limits.build(built) == next(built.iterdir()), "compiled once"


def test_a_gauge_reads_as_much_as_it_is_asked_to_and_sleeps_in_between(built):
    with Gauge(1, cache=built) as gauge:
        for size in (16, 64, 16):
            rate = gauge(size * MIB)
            assert rate is not None and 1e8 < rate < 1e13
        assert 64 * MIB < peak_bytes(gauge.pid) < 100 * MIB
        used = tree_seconds(gauge.pid)
        time.sleep(0.2)
        assert tree_seconds(gauge.pid) == used
    assert not Path(f"/proc/{gauge.pid}").exists()


def test_the_program_answers_for_the_very_size_in_its_usual_lines(built):
    command = [str(limits.build(built)), "2", "ask"]
    done = subprocess.run(command, input=f"1\n{20 * MIB + 5}\n", capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["what"], line["bytes"]) for line in lines] == [("read", 8 * MIB), ("read", 20 * MIB + 5)]


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_a_gauge_that_fails_says_so_once_and_knows_nothing_more(sent, built, caplog):
    with Gauge(1, cache=built, seconds=2.5) as gauge:
        assert gauge(16 * MIB) is not None
        os.kill(gauge.pid, sent)
        assert [gauge(16 * MIB), gauge(16 * MIB)] == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "limits: the bandwidth program ended, or gave no answer within 2.5 s"
    ]


def test_a_missing_compiler_is_said_with_the_remedy():
    with pytest.raises(MissingDependencyError, match=r"needs a C\+\+ compiler; install one"):
        limits.find_compiler(["", "no-such-compiler"])
