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


def control_groups(root, lines, files):
    """A system in which this process is in the control groups of `lines`; files under sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(line + "\n" for line in lines))
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("400000 100000", 4.0)])
def test_quota_of_control_groups(tmp_path, text, quota):
    assert cpu_quota(tmp_path) is None
    assert cpu_quota(control_groups(tmp_path, ["0::/"], {"cpu.max": text})) == quota


@pytest.mark.parametrize(("slice_", "unit", "quota"), [("max", "100000", 1.0), ("50000", "300000", 0.5)])
def test_the_tightest_of_the_groups_around_a_process_counts(tmp_path, slice_, unit, quota):
    """A service of systemd: nothing at the root, limits further down."""
    files = {"app.slice/cpu.max": f"{slice_} 100000", "app.slice/web.service/cpu.max": f"{unit} 100000"}
    files["other.slice/cpu.max"] = "1000 100000"
    assert cpu_quota(control_groups(tmp_path, ["0::/app.slice/web.service"], files)) == quota


def test_a_container_that_sees_the_hosts_path_has_its_own_group_at_the_base(tmp_path):
    assert cpu_quota(control_groups(tmp_path, ["0::/docker/0123abc"], {"cpu.max": "200000 100000"})) == 2.0


@pytest.mark.parametrize(("text", "quota"), [("250000", 2.5), ("-1", None)])
def test_quota_of_old_control_groups(tmp_path, text, quota):
    lines = ["4:memory:/x", "3:cpu,cpuacct:/docker/0123abc", "0::/"]
    files = {"cpu/cpu.cfs_quota_us": text, "cpu/cpu.cfs_period_us": "100000", "memory/x/cpu.cfs_quota_us": "1"}
    assert cpu_quota(control_groups(tmp_path, lines, files)) == quota


def test_default_is_within_the_machine_and_can_be_set(monkeypatch):
    monkeypatch.delenv("MINI_VLLM_THREADS", raising=False)
    assert 1 <= default_threads() <= len(allowed_cpus())
    monkeypatch.setenv("MINI_VLLM_THREADS", "7")
    assert default_threads() == 7
    for text in ("zero", "0", "-2", "²", "1025", "9" * 99):
        monkeypatch.setenv("MINI_VLLM_THREADS", text)
        with pytest.raises(ConfigError, match=f"MINI_VLLM_THREADS is '{text[:40]}.*from 1 to 1024"):
            default_threads()
