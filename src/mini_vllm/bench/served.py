"""A server in a process of its own, and what it has used so far. Must not know what it is asked."""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from mini_vllm.bench.child import Child
from mini_vllm.bench.machine import tree_seconds
from mini_vllm.errors import MiniVLLMError

START_SECONDS = 60.0
END_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which server."""

    form: str = "thread"
    is_real: bool = False  # the model computes; else tokens are made at will
    step_seconds: float = 0.0  # of the engine that makes them at will
    model: str = "smollm2-135m"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server's own process has used; with an engine in another process, without that."""

    cpu_seconds: float
    memory_bytes: int


class Served(Child[str]):
    """A running server. `with Served(Setup()) as served: served.url`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        settings = {
            "model": setup.model,
            "form": setup.form,
            "is_real": setup.is_real,
            "options": dict(setup.options),
        }
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mini_vllm.server.measured", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(setup),
        )
        try:
            self.url = self._read_url()
        except BaseException:
            self.close()
            raise

    def usage(self) -> Usage:
        """Processor time and memory as of now."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("usage\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Usage(answer["cpu_seconds"], answer["memory_bytes"])

    def tree_seconds(self) -> float | None:
        """Processor time of the server and its engine together; None where the system does not say."""
        try:
            return tree_seconds(self._process.pid)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """End it, and drop its log. Idempotent."""
        super().close()
        self._log.close()

    def _end(self) -> None:
        """Ask it to end, and kill it where it has not within `END_SECONDS`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        for line in self._process.stdout:
            if found := re.search(r"https?://\S+", line):
                return found.group()
            if time.monotonic() > deadline:
                break
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        raise MiniVLLMError(f"the server did not start: {said[-1] if said else 'it said nothing'}")


def _environment(setup: Setup) -> dict[str, str]:
    import os

    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "MINI_VLLM_STEP_SECONDS": str(setup.step_seconds)}
