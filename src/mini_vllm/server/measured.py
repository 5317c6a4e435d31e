"""A server that is being measured: `python -m mini_vllm.server.measured SETTINGS`, started by `mini-vllm bench server`.

SETTINGS is JSON: `model`, `form` (thread or process), `is_real` (else tokens are made at will) and `options` of the
engine. Serves on a free port like `mini-vllm serve`. Each line on standard input is answered with what it has used.
"""

import json
import sys
import threading
import time
from typing import Any

from mini_vllm.config import EngineConfig, ServerConfig
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.server.run import serve
from mini_vllm.server.stats import process_memory
from mini_vllm.testing.instant import RECIPE


def main(settings: dict[str, Any]) -> int:
    """Serve until a signal."""
    config = EngineConfig.from_options(model=settings["model"], **settings["options"])
    recipe = None if settings["is_real"] else RECIPE
    llm = AsyncLLM.from_config(config, engine_form=settings["form"], recipe=recipe)
    threading.Thread(target=_answer, daemon=True).start()
    return serve(llm, ServerConfig(port=0, shutdown_timeout=1.0), model_names=("model",))


def _answer() -> None:
    for _ in sys.stdin:
        print(json.dumps({"cpu_seconds": time.process_time(), "memory_bytes": process_memory()}), flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
