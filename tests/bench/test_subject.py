import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mini_vllm.bench.subject import Launch, Subject, SubjectError
from mini_vllm.bench.workloads import BATCH8, PREFILL_512, SINGLE, Work, make_prompts

TOY = str(Path(__file__).with_name("toy_engine.py"))


def launch(**settings):
    seconds = settings.pop("seconds", 30.0)
    return Launch(
        label="toy", command=[sys.executable, TOY], settings=settings, start_seconds=seconds, request_seconds=seconds
    )


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_rates_come_from_the_engine_s_own_clock():
    with Subject(launch()) as subject:
        assert subject.version == "7"
        sample = subject.measure(BATCH8, seed=1)  # 8 x 128 tokens in 0.128 s
        assert 4000 < sample.rate <= 8000
        single = subject.measure(SINGLE, seed=2)  # 127 tokens in the 0.127 s after the first
        assert 500 < single.rate <= 1100
        assert subject.seconds(PREFILL_512, seed=3) >= 0.001
        assert sample.foreign is None or 0 <= sample.foreign <= 1


def test_an_engine_may_measure_by_its_own_means():
    with Subject(launch(measures=True)) as subject:
        subject.warm(BATCH8, seed=1)
        assert subject.measure(BATCH8, seed=1).rate == 8000.0


def test_an_idle_engine_is_stopped_and_ends_with_the_block():
    with Subject(launch()) as subject:
        deadline = time.monotonic() + 5
        while state_of(subject.pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state_of(subject.pid) == "T"
        subject.warm(BATCH8, seed=1)
    assert not os.path.exists(f"/proc/{subject.pid}")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short", "toy: RuntimeError: 128 tokens were asked of each prompt, but they got [127]"),
        ("exit", "toy: its process ended"),
    ],
)
def test_a_failing_request_is_one_line(fault, message):
    with Subject(launch(fault=fault)) as subject, pytest.raises(SubjectError) as caught:
        subject.measure(BATCH8, seed=1)
    assert str(caught.value) == message


def test_a_request_fails_and_the_next_one_works():
    with Subject(launch(fault="short")) as subject:
        with pytest.raises(SubjectError):
            subject.measure(BATCH8, seed=1)
        with pytest.raises(SubjectError, match="4 tokens were asked"):
            subject.warm(BATCH8, seed=1)


def test_an_engine_that_takes_too_long_is_killed():
    with Subject(launch(fault="slow", seconds=1.5)) as subject:
        with pytest.raises(SubjectError, match=r"no answer within 2 s"):
            subject.measure(BATCH8, seed=1)
        with pytest.raises(SubjectError, match="ended"):
            subject.measure(BATCH8, seed=1)


def test_an_engine_that_cannot_load_says_why():
    with pytest.raises(SubjectError, match="toy: ImportError: no such library"):
        Subject(launch(fault="load"))
    with pytest.raises(SubjectError, match="toy: cannot start /no/such/python"):
        Subject(Launch(label="toy", command=["/no/such/python"], settings={}))


def test_an_idle_engine_does_not_outlive_a_bench_that_was_killed():
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from bench.test_subject import launch, Subject; "
        "subject = Subject(launch()); print(subject.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as bench:
        pid = int(bench.stdout.readline())
        bench.kill()
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def is_alive(pid):
    try:
        return state_of(pid) != "Z"
    except OSError:
        return False


def test_prompts_depend_on_the_seed_alone():
    first = make_prompts(2, 5, seed=1)
    assert first == make_prompts(2, 5, seed=1)
    assert [len(prompt) for prompt in first] == [5, 5]
    assert first[0] != first[1]
    assert make_prompts(2, 5, seed=2)[0][0] != first[0][0]
    assert {token for prompt in make_prompts(4, 100, seed=1, ids=(1000, 1005)) for token in prompt} == set(
        range(1000, 1006)
    )


@pytest.mark.parametrize(("kind", "expected"), [("decode", 9 / 1.5), ("output", 30 / 2.0), ("prompt", 21 / 2.0)])
def test_each_kind_of_work_counts_its_own_tokens(kind, expected):
    assert Work("w", kind, 3, 7, 10).rate(2.0, 0.5) == expected
