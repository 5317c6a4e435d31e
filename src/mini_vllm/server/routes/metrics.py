"""GET /metrics, as JSON or as Prometheus reads it, and where scrapers look for the latter."""

from fastapi import APIRouter, Request, Response

from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.models import MetricsPage
from mini_vllm.server.service import Service, json_response

_PROMETHEUS = ("text/plain", "application/openmetrics-text")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/metrics", **describe(None, MetricsPage, also="text/plain"))
    async def metrics(request: Request) -> Response:
        """All metrics by name: as JSON, or in Prometheus' text format for a client that accepts that."""
        accept = request.headers.get("accept", "")
        if any(kind in accept for kind in _PROMETHEUS) and "application/json" not in accept:
            return _exposition(service)
        return json_response(service.metrics.as_json())

    @routes.get("/metrics/prometheus", **describe(None, None, also="text/plain"))
    @routes.get("/prometheus/metrics", **describe(None, None, also="text/plain"))
    async def prometheus() -> Response:
        """All metrics in Prometheus' text exposition format 0.0.4."""
        return _exposition(service)

    return routes


def _exposition(service: Service) -> Response:
    return Response(service.metrics.as_prometheus(), headers={"content-type": CONTENT_TYPE})
