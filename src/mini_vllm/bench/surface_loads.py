"""What a server, or the Python API, is given to do when its surface is measured. Must not know what is wanted of it."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.bench.http_client import Answer, Connection, RequestFailed
from mini_vllm.bench.served import Served
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.types import SamplingParams

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STREAM = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0}
LOREM = "All work and no play makes a dull day. "


@dataclass(frozen=True, slots=True)
class StreamCost:
    """What streams cost the process of the server."""

    num_tokens: int
    num_events: int
    cpu_seconds: float
    seconds: float
    whole_cpu_seconds: float | None  # the engine's process included

    @property
    def micros_per_token(self) -> float:
        """Of processor time."""
        return 1e6 * self.cpu_seconds / self.num_tokens

    @property
    def whole_micros_per_token(self) -> float | None:
        """The same with the engine."""
        return None if self.whole_cpu_seconds is None else 1e6 * self.whole_cpu_seconds / self.num_tokens


async def on_connections(url: str, count: int, use: Callable[[int, Connection], Awaitable[None]]) -> None:
    """Run `use(number, connection)` on so many connections at once; the first failure ends all."""
    connections = await asyncio.gather(*(Connection.open(url) for _ in range(count)))
    try:
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(connections):
                group.create_task(_as_coroutine(use(number, connection)))
    finally:
        for connection in connections:
            connection.close()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def stream_chats(served: Served, count: int, num_tokens: int) -> StreamCost:
    """`count` chats at once, each a stream of so many tokens; all must be complete."""
    answers: list[Answer] = []
    body = {"messages": [{"role": "user", "content": LOREM}], "max_tokens": num_tokens, **STREAM}

    async def chat(_: int, connection: Connection) -> None:
        answers.append(await connection.ask(CHAT, body))

    before, whole_before = served.usage(), served.tree_seconds()
    begun = asyncio.get_running_loop().time()
    await on_connections(served.url, count, chat)
    seconds = asyncio.get_running_loop().time() - begun
    after, whole_after = served.usage(), served.tree_seconds()
    made = [answer.num_tokens() for answer in answers]
    if made != [num_tokens] * count:
        raise RequestFailed(f"{count} streams of {num_tokens} tokens gave {sorted(set(made))} tokens")
    return StreamCost(
        num_tokens=sum(made),
        num_events=sum(answer.num_events for answer in answers),
        cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        seconds=seconds,
        whole_cpu_seconds=None if whole_before is None or whole_after is None else whole_after - whole_before,
    )


async def memory_over_requests(served: Served, num_requests: int, *, samples: int, connections: int = 32) -> list[int]:
    """Bytes of the server's process after each of `samples` equal shares of the requests, streams and whole in turn."""
    found = []
    whole: Mapping[str, Any] = {"prompt": LOREM, "max_tokens": 2, "ignore_eos": True}
    bodies: Sequence[Mapping[str, Any]] = (whole, {**whole, "stream": True, "stream_options": {"include_usage": True}})
    share = num_requests // samples // connections

    async def ask(number: int, connection: Connection) -> None:
        for turn in range(share):
            answer = await connection.ask(COMPLETIONS, bodies[(number + turn) % 2])
            if answer.num_tokens() != 2:
                raise RequestFailed(f"2 tokens were asked for, not {answer.num_tokens()}")

    for _ in range(samples):
        await on_connections(served.url, connections, ask)
        found.append(served.usage().memory_bytes)
    return found


async def health_waits(
    served: Served, *, streams: int, prompt_bytes: int, num_tokens: int, seconds: float
) -> list[float]:
    """How long /health took, asked every 10 ms, while so many streams begin with long prompts, over and over."""
    loop, waits = asyncio.get_running_loop(), list[float]()
    end = loop.time() + seconds
    text = (LOREM * (prompt_bytes // len(LOREM) + 1))[:prompt_bytes]

    async def stream(number: int, connection: Connection) -> None:
        turn = 0
        await asyncio.sleep(seconds / 4 * number / streams)
        while loop.time() < end:
            prompt = f"{number} {turn} {text}"
            await connection.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": num_tokens, **STREAM})
            turn += 1

    async def look(connection: Connection) -> None:
        while loop.time() < end:
            answer = await connection.ask("/health")
            waits.append(answer.last - answer.asked)
            await asyncio.sleep(0.01)

    async def either(number: int, connection: Connection) -> None:
        await (look(connection) if number == streams else stream(number, connection))

    await on_connections(served.url, streams + 1, either)
    return waits


async def http_rate(served: Served, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
    """Tokens per second of streams of all prompts at once, over HTTP."""
    answers: list[Answer] = []

    async def complete(number: int, connection: Connection) -> None:
        body = {"prompt": prompts[number], "max_tokens": num_tokens, **STREAM}
        answers.append(await connection.ask(COMPLETIONS, body))

    await on_connections(served.url, len(prompts), complete)
    seconds = max(answer.last for answer in answers) - min(answer.asked for answer in answers)
    return sum(answer.num_tokens() for answer in answers) / seconds


async def api_rate(llm: AsyncLLM, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
    """The same through `AsyncLLM`."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.0)
    loop = asyncio.get_running_loop()

    async def complete(prompt: Sequence[int]) -> int:
        return sum([len(delta.token_ids) async for delta in llm.stream(prompt, params)])

    begun = loop.time()
    counts = await asyncio.gather(*(complete(prompt) for prompt in prompts))
    return sum(counts) / (loop.time() - begun)


async def http_first(served: Served, prompt: Sequence[int]) -> float:
    """Seconds to the first token of one stream, over a connection that is open."""
    connection = await Connection.open(served.url)
    try:
        answer = await connection.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, **STREAM})
    finally:
        connection.close()
    return answer.first - answer.asked


async def api_first(llm: AsyncLLM, prompt: Sequence[int]) -> float:
    """The same through `AsyncLLM`."""
    loop = asyncio.get_running_loop()
    begun, first = loop.time(), 0.0
    async for _ in llm.stream(prompt, SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)):
        first = first or loop.time() - begun
    return first


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so many of the others do not exceed, such as 0.99 of them."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
