import sys

import pytest
from bench.fakes import ScriptedClock, ScriptedSubject

from mini_vllm.bench import self_rows
from mini_vllm.bench.limits import Limits
from mini_vllm.bench.process_rows import first_output, peak_bytes
from mini_vllm.bench.subject import SubjectError
from mini_vllm.bench.targets import verdict

LIMITS = Limits(((1.0, 9e9), (1e9, 1e9)), {"f32": 1.0, "bf16": 1.0, "int8": 1.0})


def subject(rates, diary=None):
    return ScriptedSubject("ours", rates, ScriptedClock(), diary if diary is not None else [])


def test_sampling_is_a_share_of_the_greedy_rate():
    row = self_rows.sampled_row(subject([90, 100, 96, 100]), rounds=2)
    assert (row.work, row.peer, row.ratio, row.spread) == ("sampled32", "self", pytest.approx(0.93), (0.9, 0.96))


class Timed:
    """Attention takes 7 ms in the first step and 2 ns a token of history and stream in each later one."""

    def __init__(self):
        self.times = {}

    def seconds(self, work, *, seed, new_tokens=None):
        later = (new_tokens - 1) * 2e-9 * work.batch * work.prompt_len
        for name, value in {"linear": 1.0, "attend": 5e-3 + later / 2, "attend_combine": 2e-3 + later / 2}.items():
            self.times[name] = self.times.get(name, 0.0) + value
        return 9.0

    def op_seconds(self):
        found, self.times = self.times, {}
        return found


def test_attention_is_its_own_time_in_steps_after_the_first():
    rows = list(self_rows.history_rows(Timed(), lambda num_bytes: LIMITS.bandwidth_at(num_bytes), rounds=3))
    assert [row.detail for row in rows] == ["batch 1", "batch 16"]
    for row, batch in zip(rows, (1, 16)):
        assert row.ours == pytest.approx(1e3 * 2e-9 * batch * 2000, rel=1e-6)
        # 23,040 bytes a token at 1e9 bytes per second
        assert row.theirs == pytest.approx(1e3 * 23_040 * batch * 2032.5 / 1e9)
        assert row.ratio == pytest.approx(23_040e-9 * 2032.5 / (2e-9 * 2000))


def test_rounds_in_which_the_bandwidth_changed_count_only_when_there_are_no_others():
    readings = iter([1e9, 3e9, *[1e9, 1.1e9] * 8, *[1e9, 3e9] * 9])
    one, sixteen = self_rows.history_rows(Timed(), lambda num_bytes: next(readings), rounds=1)
    assert one.theirs == pytest.approx(1e3 * 23_040 * 2032.5 / 1.05e9)
    assert one.ratio == pytest.approx(23_040 / 1.05e9 * 2032.5 / (2e-9 * 2000)) and one.spread[0] == one.spread[1]
    assert sixteen.theirs == pytest.approx(1e3 * 23_040 * 16 * 2032.5 / 2e9)


def test_a_plain_split_meets_the_same_prompts():
    diary = []
    ours, plain = subject([99, 98, 10, 10], diary), subject([100, 100, 10, 20], diary)
    plain.label = "plain"
    rows = list(self_rows.plain_split_rows(ours, plain, rounds=2))
    assert diary == ["warm ours", "warm plain", "ours", "plain", "ours", "plain"] * 2
    assert ours.seeds == plain.seeds
    assert [row.detail for row in rows] == [
        "32 streams, quiet, against a plain static split", "1 stream, quiet, against a plain static split",
    ]  # fmt: skip
    assert [row.ratio for row in rows] == pytest.approx([0.985, 0.75])
    assert [verdict(row) for row in rows] == ["floor 0.97", "missed 0.97"]


def test_overhead_is_a_share_of_a_step():
    whole, empty = subject([500, 500]), subject([10_000, 5_000])
    row = self_rows.overhead_row(whole, empty, "q4_1", rounds=2)
    assert (row.work, row.unit, row.detail) == ("overhead", "ms", "a step without kernels, against 12% of a whole one")
    assert (row.ours, row.theirs) == pytest.approx((0.15, 0.24))
    assert row.spread == pytest.approx((1.2, 2.4)) and verdict(row) == "target 1.00"
    assert self_rows.overhead_row(subject([200]), subject([5_000]), "bf16", rounds=1).theirs == pytest.approx(0.25)


def test_neighbours_are_quiet_and_busy_in_turn(monkeypatch):
    diary = []
    monkeypatch.setattr(self_rows, "spinning", Spinning(diary))
    engine = subject([100, 60, 100, 30, 100, 70, 100, 20], diary)
    rows = list(self_rows.neighbour_rows(engine, rounds=2, streams=(32,)))
    one = ["ours", "spin 1", "ours", "rest"]
    three = ["ours", "spin 3", "ours", "rest"]
    assert diary == ["warm ours", *one, *three, *one, *three]
    assert [row.ratio for row in rows] == pytest.approx([0.65, 0.25])
    assert rows[0].detail == "32 streams beside 1 spinning process, against quiet"
    assert rows[1].detail == "32 streams beside 3 spinning processes, against quiet"


class Spinning:
    def __init__(self, diary):
        self.diary = diary

    def __call__(self, count):
        self.count = count
        return self

    def __enter__(self):
        self.diary.append(f"spin {self.count}")

    def __exit__(self, *exc_info):
        self.diary.append("rest")


def test_spinning_processes_live_for_the_block_only():
    with self_rows.spinning(2) as neighbours:
        assert [neighbour.poll() for neighbour in neighbours] == [None, None]
    assert all(neighbour.returncode is not None for neighbour in neighbours)


def test_the_first_token_is_the_first_visible_output():
    slow = "import sys, time; print(flush=True); time.sleep(.3); print('x', flush=True); time.sleep(60)"
    assert 0.3 < first_output([sys.executable, "-c", slow]) < 10
    with pytest.raises(SubjectError, match="ended without printing"):
        first_output([sys.executable, "-c", "print()"])


def test_peak_memory_is_the_high_water_mark():
    import os

    block = bytearray(50 * 2**20)
    block[:] = b"x" * len(block)
    before = peak_bytes(os.getpid())
    del block
    assert peak_bytes(os.getpid()) >= before > 50 * 2**20
