"""Runs the functions of a script that begin with `check_`, in order. Known to the scripts beside it."""

import asyncio
import inspect
import os
import time
from typing import Any

URL, KEY, MODEL = (os.environ[f"MINI_VLLM_{name}"] for name in ("URL", "KEY", "MODEL"))
BASE = f"{URL}/v1"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}
PARIS = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


def run(script: dict[str, Any]) -> None:
    """All checks of a script; the first failure ends it."""
    for name, check in list(script.items()):
        if name.startswith("check_"):
            begin = time.monotonic()
            asyncio.run(check()) if inspect.iscoroutinefunction(check) else check()
            print(f"{name} {time.monotonic() - begin:.2f} s", flush=True)
