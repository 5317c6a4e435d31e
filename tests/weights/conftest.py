"""The stand-in server as a fixture, and an environment in which nothing else can be reached."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class StandIn:
    """A running server. `root/hub` and `root/index` are what it serves."""

    root: Path
    url: str

    @property
    def index_url(self) -> str:
        return self.url + "/simple"

    def requests(self) -> list[str]:
        """What was asked since the last call."""
        log = self.root / "requests"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    root = tmp_path / "served"
    (root / "hub").mkdir(parents=True)
    (root / "index").mkdir()
    script = str(Path(__file__).with_name("stand_in.py"))
    with subprocess.Popen([sys.executable, script, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = StandIn(root, f"http://127.0.0.1:{process.stdout.readline().strip()}")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("PIP_INDEX_URL", server.index_url)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "cache"))
        yield server
        process.terminate()
