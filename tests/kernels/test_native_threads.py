"""How many threads a process gets: physical cores, affinity, control group quota."""

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.native_threads import allowed_cpus, cpu_quota, default_threads, physical_cores


@pytest.fixture
def topology(tmp_path):
    """Four logical processors on two cores, and one of unknown topology."""
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    return tmp_path


@pytest.mark.parametrize(("cpus", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({1, 3, 9}, 2), ({8, 9}, 2)])
def test_hyper_threads_of_a_core_count_once(topology, cpus, cores):
    assert physical_cores(cpus, topology) == cores


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("400000 100000", 4.0)])
def test_quota_of_control_groups(tmp_path, text, quota):
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert cpu_quota(tmp_path) == quota


def test_quota_of_old_control_groups(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) == 2.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(tmp_path) is None


def test_default_is_within_the_machine_and_can_be_set(monkeypatch):
    monkeypatch.delenv("MINI_VLLM_THREADS", raising=False)
    assert 1 <= default_threads() <= len(allowed_cpus())
    monkeypatch.setenv("MINI_VLLM_THREADS", "7")
    assert default_threads() == 7
    monkeypatch.setenv("MINI_VLLM_THREADS", "zero")
    with pytest.raises(ConfigError, match="MINI_VLLM_THREADS is 'zero'"):
        default_threads()
