"""POST /benchmark, GET /benchmark/results and /simulations/latest."""

import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request, Response

from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.errors import RequestRefused
from mini_vllm.server.generation import Job
from mini_vllm.server.limits import Terms, first_deadline
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.benchmark import (
    BenchmarkRequest,
    BenchmarkResponse,
    RecordFile,
    RecordFiles,
    Spread,
)
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.types import SamplingParams

READER = BodyReader(BenchmarkRequest, ignored={}, rejected={})
RESULTS = Path("benchmarks/results")  # under the working directory
MOST_FILES = 10
MOST_BYTES = 4_000_000  # of a file


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.post("/benchmark", **describe(BenchmarkRequest, BenchmarkResponse))
    async def benchmark(request: Request) -> Response:
        """Measure a small run on this server, as it is."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        state = request.state
        deadline = first_deadline(state.arrival, deadline_ms=None, timeout=service.request_timeout)
        terms = Terms(deadline=deadline, charge=lambda count: service.rates.charge(state.client, count))
        return json_response(await until_disconnect(request.receive, _measure(service, body, terms)))

    @routes.get("/benchmark/results", **describe(None, RecordFiles))
    async def results() -> Response:
        """The newest results of `mini-vllm bench` in the folder that the server was started in."""
        return json_response(await asyncio.to_thread(newest, RESULTS))

    @routes.get("/simulations/latest", **describe(None, RecordFiles))
    async def simulations() -> Response:
        """The newest records of `mini-vllm simulate`, in the folder that --out-dir names."""
        return json_response(await asyncio.to_thread(newest, service.simulations))

    return routes


async def _measure(service: Service, body: BenchmarkRequest, terms: Terms) -> BenchmarkResponse:
    [prompt] = await service.reader.read(body.prompt, n=1)
    count, head = body.requests, service.head("bench-")
    jobs = [
        Job(
            request_id=f"{head.id}-{number}",
            token_ids=prompt.token_ids,
            params=SamplingParams(max_tokens=body.max_new_tokens, temperature=0.0, ignore_eos=True),
            cache_salt=secrets.token_hex(8),  # so that none reads what another has computed
        )
        for number in range(count)
    ]
    begin = time.perf_counter()
    firsts, lasts, tokens = [0.0] * count, [0.0] * count, [0] * count
    async with aclosing(service.generate(jobs, terms)) as deltas:
        async for number, delta in deltas:
            lasts[number] = time.perf_counter() - begin
            firsts[number] = firsts[number] or lasts[number]
            tokens[number] = delta.num_output_tokens
    seconds = max(lasts)
    rates = [(last - first) / (n - 1) for first, last, n in zip(firsts, lasts, tokens) if n > 1]
    return BenchmarkResponse(
        model=head.model,
        requests=count,
        prompt_tokens=count * len(prompt.token_ids),
        output_tokens=sum(tokens),
        seconds=round(seconds, 6),
        tokens_per_second=round(sum(tokens) / seconds, 3),
        requests_per_second=round(count / seconds, 3),
        ttft_ms=_spread(firsts),
        latency_ms=_spread(lasts),
        ms_per_token=_spread(rates) if rates else None,
    )


def _spread(seconds: Sequence[float]) -> Spread:
    values = [1e3 * each for each in seconds]
    return Spread(
        mean=round(statistics.fmean(values), 3), p50=round(statistics.median(values), 3), max=round(max(values), 3)
    )


def newest(folder: Path) -> RecordFiles:
    """The newest JSON files of a folder; a 404 that names it while there are none."""
    found = [path for path in folder.glob("*.json") if path.is_file() and path.stat().st_size <= MOST_BYTES]
    found.sort(key=lambda path: (path.stat().st_mtime, path.name), reverse=True)
    files = [file for path in found[:MOST_FILES] if (file := _read(path)) is not None]
    if not files:
        raise RequestRefused(404, f"there are no JSON files in the server's {folder}/", code="not_found")
    return RecordFiles(folder=str(folder), files=files)


def _read(path: Path) -> RecordFile | None:
    """None for one that is no JSON, or has gone meanwhile."""
    try:
        return RecordFile(name=path.name, modified=path.stat().st_mtime, content=msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, UnicodeError):
        return None
