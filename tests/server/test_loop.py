"""Heavy work leaves the event loop alone: a ticker beside it keeps ticking."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mini_vllm.config import EngineConfig
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.server.app import create_app
from mini_vllm.testing import instant

LIMIT = 1_000_000  # tokens of context, so that nothing is refused before it is read
MEGABYTE = "All work and no play makes a dull day. " * 26_000


@pytest.fixture(scope="module")
def llm(default_model: Any) -> Iterator[AsyncLLM]:
    """The default model's tokenizer and template over an engine that makes tokens at will."""
    engine = instant.load(EngineConfig.from_options(model=str(default_model), max_model_len=LIMIT))
    llm = AsyncLLM.from_engine(engine)
    yield llm
    llm.shutdown()


CHOICES = [" ".join(f"word{number * place % 997}" for place in range(1, 12)) for number in range(1, 2001)]
SHORT: dict[str, dict[str, Any]] = {  # loads and compiles what is made once
    "/v1/completions": {"prompt": "a", "structured_outputs": {"regex": "a"}},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
}


class Ticker:
    """Ticks every few milliseconds and notes the longest time between two ticks."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.003)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def longest_gap(llm: AsyncLLM, path: str, body: dict[str, Any]) -> tuple[float, float, httpx.Response]:
    """Of the loop while a request is answered, and how long that took."""
    payload = json.dumps(body).encode()

    async def run() -> tuple[float, float, httpx.Response]:
        app = create_app(llm, model_names=("m",))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await client.post(path, json={**SHORT[path], "max_tokens": 1})
            ticker = Ticker()
            ticking = asyncio.create_task(ticker.run())
            await asyncio.sleep(0.01)
            begun = time.perf_counter()
            response = await client.post(path, content=payload, headers={"content-type": "application/json"})
            seconds = time.perf_counter() - begun
            ticking.cancel()
        return ticker.longest, seconds, response

    return asyncio.run(run())


CASES = {
    "a megabyte of text": ("/v1/completions", {"prompt": MEGABYTE, "max_tokens": 1}),
    "a megabyte of chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": MEGABYTE}], "max_tokens": 1},
    ),
    "many messages": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": f"message {i}"} for i in range(20_000)], "max_tokens": 1},
    ),
    "a megabyte to count": ("/tokenize", {"prompt": MEGABYTE}),
    "two thousand choices": (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1, "structured_outputs": {"choice": CHOICES}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loop_goes_on_beside(llm: AsyncLLM, name: str) -> None:
    """One good try is enough: whoever blocks the loop blocks it every time, and a busy machine only now and then."""
    tries = []
    for _ in range(5):
        gap, seconds, response = longest_gap(llm, *CASES[name])
        assert response.status_code == 200, response.text
        tries.append((gap, seconds))
        if gap < max(0.1, seconds / 3):
            return
    pytest.fail(f"the loop stood still every time; (gap, seconds): {tries}")
