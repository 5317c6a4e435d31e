"""`mini-vllm bench server`: what HTTP costs beside the engine, and where the engine had better run.

With an engine that makes tokens at will: processor time per token, memory over many requests, /health under load. With
the real model: rates and first tokens over HTTP against the Python API, and the thread form against the process form,
measured in turn. Must not know HTTP itself.
"""

import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.bench import machine
from mini_vllm.bench import surface_loads as loads
from mini_vllm.bench.figures import Figure
from mini_vllm.bench.served import Served, Setup
from mini_vllm.bench.workloads import make_prompts
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.errors import ConfigError

logger = logging.getLogger(__name__)

FORMS = ("thread", "process")
COST_GOAL, COST_TARGET = 120.0, 60.0  # microseconds of processor time per streamed token
PACED_SECONDS = 0.02  # a step's time where tokens come at a model's pace
MEMORY_GOAL = 2.0  # MiB from two fifths of the requests to the last
HEALTH_GOAL = 100.0  # ms, 99 of 100
RATE_GOAL = 0.90  # of the Python API's
FIRST_GOAL = 5.0  # ms above the Python API's
REAL: dict[str, Any] = {"max_num_seqs": 128, "max_model_len": 1024, "num_blocks": 2048}
AT_WILL: dict[str, Any] = {"max_num_seqs": 256}
PROMPT_LEN = 64
PROMPT_BYTES, HEALTH_TOKENS = 100_000, 200  # of the streams beside /health

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    stream_tokens: int = 200
    filling_tokens: int = 2_200  # of each of 256 streams
    num_requests: int = 50_000
    health_seconds: float = 10.0
    health_streams: int = 64
    rounds: int = 6
    first_rounds: int = 25
    streams: tuple[int, ...] = (1, 32, 128, 256)  # at once, of the engine at will
    model_tokens: Mapping[int, int] = field(default_factory=lambda: {1: 128, 32: 64, 128: 48})  # new ones, by streams


QUICK = Effort(stream_tokens=50, filling_tokens=200, num_requests=2_000, health_seconds=3.0, rounds=2, first_rounds=5)


class Surface:
    """One run, part by part."""

    def __init__(self, effort: Effort, *, model: str = "smollm2-135m", threads: int | None = None) -> None:
        self._effort = effort
        self._model = model
        self._real_options = {**REAL, "threads": threads}
        self._seed = 0
        self.parts: dict[str, Callable[[], Iterator[Figure]]] = {
            "cost": self._costs,
            "memory": self._memory,
            "health": self._health,
            "model": self._real,
        }

    def run(self, only: Sequence[str] = ()) -> Iterator[Figure]:
        """The figures of all parts, or of these."""
        if unknown := [name for name in only if name not in self.parts]:
            raise ConfigError(f"--only is {unknown[0]!r}; choose from {', '.join(self.parts)}", param="only")
        for name, part in self.parts.items():
            if not only or name in only:
                logger.info("%s", name)
                yield from part()

    def _costs(self) -> Iterator[Figure]:
        """A server for each form and pace, warmed by a few chats."""
        for pace, step_seconds in (
            ("tokens at will", 0.0),
            (f"a token each {PACED_SECONDS * 1e3:g} ms", PACED_SECONDS),
        ):
            for form in FORMS:
                with self._at_will(form, step_seconds) as served:
                    asyncio.run(loads.stream_chats(served, 8, 10))
                    for count in self._effort.streams:
                        yield self._cost(served, count, pace)

    def _cost(self, served: Served, count: int, pace: str) -> Figure:
        num_tokens = self._effort.stream_tokens * (4 if count == 1 and not served.setup.step_seconds else 1)
        cost = asyncio.run(loads.stream_chats(served, count, num_tokens))
        whole = cost.whole_micros_per_token
        engine = f", {whole:.0f} with the engine's process" if served.setup.form == "process" and whole else ""
        alone = count == 1 and served.setup.step_seconds > 0
        return Figure(
            what="processor time per token",
            value=cost.micros_per_token,
            unit="µs",
            form=served.setup.form,
            load=f"{_plural(count, 'stream')}, {pace}",
            goal=None if alone else COST_GOAL,  # waking an idle machine, 50 times a second, costs more than the rest
            note=f"{cost.num_tokens / cost.seconds:.0f} tok/s, {cost.num_events / cost.num_tokens:.2f} events per token"
            + engine,
        )

    def _memory(self) -> Iterator[Figure]:
        """From when everything that is bounded is full: the record of steps, and that of requests after two fifths."""
        with self._at_will("thread", 0.0) as served:
            asyncio.run(loads.stream_chats(served, max(self._effort.streams), self._effort.filling_tokens))
            sizes = asyncio.run(loads.memory_over_requests(served, self._effort.num_requests, samples=5))
        yield Figure(
            what="memory gained",
            value=(sizes[-1] - sizes[1]) / 2**20,
            unit="MiB",
            form="thread",
            load=f"{self._effort.num_requests} requests, 32 at a time",
            goal=MEMORY_GOAL,
            note="after each fifth: " + ", ".join(f"{size / 2**20:.1f}" for size in sizes),
        )

    def _health(self) -> Iterator[Figure]:
        for form in FORMS:
            with self._at_will(form, PACED_SECONDS) as served:
                waits = asyncio.run(
                    loads.health_waits(
                        served,
                        streams=self._effort.health_streams,
                        prompt_bytes=PROMPT_BYTES,
                        num_tokens=HEALTH_TOKENS,
                        seconds=self._effort.health_seconds,
                    )
                )
            yield Figure(
                what="/health, 99th percentile",
                value=1e3 * loads.percentile(waits, 0.99),
                unit="ms",
                form=form,
                load=f"{self._effort.health_streams} streams, prompts of {PROMPT_BYTES // 1000} KB",
                goal=HEALTH_GOAL,
                note=f"median {1e3 * statistics.median(waits):.1f}, worst {1e3 * max(waits):.0f}, of {len(waits)}",
            )

    def _real(self) -> Iterator[Figure]:
        """The API in this process and a server of each form, measured in turn."""
        with ExitStack() as stack:
            servers = {
                form: stack.enter_context(
                    Served(Setup(form=form, is_real=True, model=self._model, options=self._real_options))
                )
                for form in FORMS
            }
            yield from asyncio.run(self._compare(servers))

    async def _compare(self, servers: dict[str, Served]) -> list[Figure]:
        figures: list[Figure] = []
        async with AsyncLLM(self._model, **self._real_options) as llm:
            for count, num_tokens in self._effort.model_tokens.items():
                rates = await self._in_turn(
                    self._effort.rounds,
                    lambda prompts: {
                        "api": lambda: loads.api_rate(llm, prompts, num_tokens),  # noqa: B023
                        **{name: _rate(served, prompts, num_tokens) for name, served in servers.items()},  # noqa: B023
                    },
                    count,
                )
                figures += _rate_figures(rates, count)
            firsts = await self._in_turn(
                self._effort.first_rounds,
                lambda prompts: {
                    "api": lambda: loads.api_first(llm, prompts[0]),
                    **{name: _first(served, prompts[0]) for name, served in servers.items()},
                },
                1,
            )
            figures += _first_figures(firsts)
        return figures

    async def _in_turn(
        self, rounds: int, measures: Callable[[list[list[int]]], dict[str, Measure]], count: int
    ) -> dict[str, list[float]]:
        """Each one's values, round by round, every one with prompts of its own; the first round warms."""
        found: dict[str, list[float]] = {}
        for turn in range(rounds + 1):
            for name in measures([[]]):
                self._seed += 1
                prompts = make_prompts(count, PROMPT_LEN, seed=self._seed)
                value = await measures(prompts)[name]()
                if turn:
                    found.setdefault(name, []).append(value)
        return found

    def _at_will(self, form: str, step_seconds: float) -> Served:
        return Served(Setup(form=form, step_seconds=step_seconds, model=self._model, options=AT_WILL))


def _rate(served: Served, prompts: list[list[int]], num_tokens: int) -> Measure:
    return lambda: loads.http_rate(served, prompts, num_tokens)


def _first(served: Served, prompt: list[int]) -> Measure:
    return lambda: loads.http_first(served, prompt)


def _rate_figures(rates: dict[str, list[float]], count: int) -> Iterator[Figure]:
    load = f"{_plural(count, 'stream')}, the model"
    for form in FORMS:
        yield Figure(
            what="rate over HTTP, of the Python API's",
            value=statistics.median(ours / api for ours, api in zip(rates[form], rates["api"])),
            unit="",
            form=form,
            load=load,
            goal=RATE_GOAL if count == 32 else None,
            at_least=True,
            note=f"{statistics.median(rates[form]):.0f} against {statistics.median(rates['api']):.0f} tok/s",
        )
    ratios = [process / thread for process, thread in zip(rates["process"], rates["thread"])]
    yield Figure(
        what="rate, one form against the other",
        value=statistics.median(ratios),
        unit="",
        form="process/thread",
        load=load,
        note=f"{min(ratios):.2f} to {max(ratios):.2f}",
    )


def _first_figures(firsts: dict[str, list[float]]) -> Iterator[Figure]:
    for form in FORMS:
        more = [ours - api for ours, api in zip(firsts[form], firsts["api"])]
        yield Figure(
            what="first token, above the Python API's",
            value=1e3 * statistics.median(more),
            unit="ms",
            form=form,
            load="1 stream, the model",
            goal=FIRST_GOAL,
            note=f"{1e3 * statistics.median(firsts[form]):.1f} against {1e3 * statistics.median(firsts['api']):.1f} ms",
        )


def measure(*, quick: bool, threads: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """The record: {"machine": …, "figures": […]}. `threads`: of the real model."""
    begun = time.monotonic()
    figures = list(Surface(QUICK if quick else Effort(), threads=threads).run(only))
    described = {
        **machine.describe(),
        "threads": threads,
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "mode": "quick" if quick else "full",
        "minutes": round((time.monotonic() - begun) / 60, 1),
    }
    return {"machine": described, "figures": [figure.as_json() for figure in figures]}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
