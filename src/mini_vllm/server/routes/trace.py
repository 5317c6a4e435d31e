"""GET /trace: what the scheduler did in its last steps."""

import asyncio

import msgspec
from fastapi import APIRouter, Response

from mini_vllm.scheduling import export
from mini_vllm.server.errors import RequestRefused
from mini_vllm.server.openapi import describe
from mini_vllm.server.service import Service


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/trace", **describe(None, None, also="application/x-ndjson"))
    async def trace(format: str = "jsonl") -> Response:
        """The scheduler's last steps and the requests in them: JSON lines, or ?format=chrome for Perfetto.

        `mini-vllm explain REQUEST_ID` reads this. It holds ids and counts, never text.
        """
        kept = service.engine.trace
        if format == "jsonl":
            return Response(await asyncio.to_thread(export.dump, kept), media_type="application/x-ndjson")
        if format == "chrome":
            events = await asyncio.to_thread(export.to_chrome, kept.requests(), kept.steps())
            return Response(msgspec.json.encode(events), media_type="application/json")
        raise RequestRefused(400, f"format is {format!r:.50}; choose jsonl or chrome")

    return routes
