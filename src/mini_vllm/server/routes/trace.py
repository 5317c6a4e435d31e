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
        if format not in ("jsonl", "chrome"):
            raise RequestRefused(400, f"format is {format!r:.50}; choose jsonl or chrome")
        text = await asyncio.to_thread(service.engine.read_trace)
        if format == "jsonl":
            return Response(text, media_type="application/x-ndjson")
        return Response(await asyncio.to_thread(_as_chrome, text), media_type="application/json")

    return routes


def _as_chrome(text: str) -> bytes:
    return msgspec.json.encode(export.to_chrome(*export.from_jsonl(text.splitlines())))
