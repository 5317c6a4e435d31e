"""The threads that were asked for are the threads that compute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys
from mini_vllm import LLM, SamplingParams

def seconds():
    times = {}
    for task in os.listdir("/proc/self/task"):
        fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
        times[task] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times

llm = LLM(sys.argv[1], threads=int(sys.argv[2]), max_model_len=1024)
before = seconds()
llm.generate([[5] * 400] * 2, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
spent = {task: value - before.get(task, 0.0) for task, value in seconds().items()}
print(json.dumps([llm.engine.description, sorted(spent.values(), reverse=True)]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads through Linux's /proc")
@pytest.mark.parametrize("threads", [1, 2])
def test_cli_03_as_many_threads_compute_as_were_asked_for(default_model: str, threads: int) -> None:
    command = [sys.executable, "-c", PROGRAM, default_model, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    description, spent = json.loads(done.stdout)
    assert description["threads"] == str(threads)
    busy = [seconds for seconds in spent if seconds > 0.1 * spent[0]]
    assert len(busy) == threads, spent
