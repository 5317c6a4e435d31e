"""A server in a process of its own, as on the command line: `python -m server.process HOST PORT TIMEOUT LOADING`.

LOADING is how many seconds the model takes to load.
"""

import asyncio
import sys
import threading
from typing import Any

from server.rig import MODEL, make_llm

from mini_vllm.config import ServerConfig
from mini_vllm.errors import UserError
from mini_vllm.server.run import serve


class SlowToLoad:
    """An engine that takes its time to start, as a large model does."""

    def __init__(self, llm: Any, seconds: float) -> None:
        self._llm = llm
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def start(self) -> None:
        """Load."""
        print("loading", flush=True)
        await asyncio.sleep(self._seconds)


def main(host: str, port: str, timeout: str, loading: str, *more: str) -> int:
    """Serve until a signal; what the command line does with errors.

    `more`: hang in each step, and notice after this many seconds; certificate file; its key's.
    """
    stall, certificate, key = (*more, "", "", "")[:3]
    executor, llm = make_llm(delay=0.02, max_model_len=4096, num_blocks=1024)
    executor.hang = threading.Event() if stall else None
    config = ServerConfig(
        host=host,
        port=int(port),
        shutdown_timeout=float(timeout),
        stall_timeout=float(stall) if stall else None,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
    )
    try:
        return serve(SlowToLoad(llm, float(loading)), config, model_names=(MODEL,))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        llm.shutdown(timeout=1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
