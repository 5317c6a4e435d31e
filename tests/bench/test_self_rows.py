import sys

import pytest
from bench.fakes import ScriptedClock, ScriptedSubject

from mini_vllm.bench import self_rows
from mini_vllm.bench.limits import Limits
from mini_vllm.bench.process_rows import first_output, peak_bytes
from mini_vllm.bench.subject import SubjectError

LIMITS = Limits(((1.0, 9e9), (1e9, 1e9)), {"f32": 1.0, "bf16": 1.0, "int8": 1.0})


def subject(rates, diary=None):
    return ScriptedSubject("ours", rates, ScriptedClock(), diary if diary is not None else [])


def test_sampling_is_a_share_of_the_greedy_rate():
    row = self_rows.sampled_row(subject([90, 100, 96, 100]), rounds=2)
    assert (row.work, row.peer, row.ratio, row.spread) == ("sampled32", "self", pytest.approx(0.93), (0.9, 0.96))


class Stepping:
    """Steps take 1 ms plus 2 ns a token of history and stream; the first token takes a second."""

    def seconds(self, work, *, seed, new_tokens=None):
        steps = (work.new_tokens if new_tokens is None else new_tokens) - 1
        return 1.0 + steps * (1e-3 + 2e-9 * work.batch * work.prompt_len)


def test_attention_is_what_a_long_history_adds_to_a_step():
    rows = list(self_rows.history_rows(Stepping(), LIMITS, rounds=3))
    assert [row.detail for row in rows] == ["batch 1", "batch 16"]
    for row, batch in zip(rows, (1, 16)):
        assert row.ours == pytest.approx(1e3 * 2e-9 * batch * 1984, rel=1e-6)
        # 23,040 bytes a token at 1e9 bytes per second
        assert row.theirs == pytest.approx(1e3 * 23_040 * batch * 1984 / 1e9)
        assert row.ratio == pytest.approx(23_040e-9 / 2e-9)


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
