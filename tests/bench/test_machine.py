import os

import pytest

from mini_vllm.bench import machine
from mini_vllm.bench.machine import LoadMeter

HZ = os.sysconf("SC_CLK_TCK")


def write_stat(proc, pid, parent, ticks):
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", parent, *[0] * 9, *ticks, 0]
    (folder / "stat").write_text(f"{pid} (a name) with) spaces) " + " ".join(map(str, fields)))


def write_total(proc, busy, idle=0, iowait=0, steal=0):
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} {iowait} 0 0 {steal} 0 0\ncpu0 1 1 1 1\n")


def test_busy_time_leaves_out_idle_and_waiting_but_not_stolen_time(tmp_path):
    write_total(tmp_path, busy=30 * HZ, idle=500 * HZ, iowait=7 * HZ, steal=2 * HZ)
    assert machine.busy_seconds(tmp_path) == 32.0


def test_a_tree_is_a_process_with_all_below_it_and_what_it_has_waited_for(tmp_path):
    write_stat(tmp_path, 10, 1, (HZ, HZ, 2 * HZ, 0))
    write_stat(tmp_path, 11, 10, (3 * HZ, 0, 0, 0))
    write_stat(tmp_path, 12, 11, (0, 5 * HZ, 0, 0))
    write_stat(tmp_path, 13, 1, (100 * HZ, 0, 0, 0))
    (tmp_path / "99").mkdir()  # a process that has just ended
    assert machine.tree_seconds(10, tmp_path) == 1 + 1 + 2 + 3 + 5


def test_foreign_is_what_the_machine_did_beyond_our_tree(tmp_path):
    clock = iter([0.0, 2.0])
    cores = os.cpu_count()
    write_total(tmp_path, busy=10 * HZ)
    write_stat(tmp_path, os.getpid(), 1, (HZ, 0, 0, 0))
    meter = LoadMeter(proc=tmp_path, clock=lambda: next(clock))
    meter.begin()
    write_total(tmp_path, busy=12 * HZ)
    write_stat(tmp_path, os.getpid(), 1, (2 * HZ, 0, 0, 0))
    assert meter.foreign() == pytest.approx(1 / (2.0 * cores), abs=0.001)


def test_without_proc_the_share_is_unknown(tmp_path):
    meter = LoadMeter(proc=tmp_path)
    meter.begin()
    assert meter.foreign() is None


def test_the_machine_describes_itself():
    found = machine.describe()
    assert found["cores"] == os.cpu_count()
    assert found["memory_bytes"] > 2**28
    assert found["cpu"]
