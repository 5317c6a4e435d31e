"""GET /health, /ready, /version and /stats."""

from fastapi import APIRouter, Response

from mini_vllm import __version__
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.models import Health, Stats, Version
from mini_vllm.server.service import Service, json_response


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", **describe(None, Health))
    async def health() -> Response:
        """200 while requests are answered, otherwise 503."""
        return _health(service)

    @routes.head("/ready", include_in_schema=False)
    @routes.get("/ready", **describe(None, Health))
    async def ready() -> Response:
        """The same, for those who ask whether to send requests here. The model is loaded before anything is served."""
        return _health(service)

    @routes.get("/version", **describe(None, Version))
    async def version() -> Response:
        """The version of this server."""
        return json_response(Version(version=__version__))

    @routes.get("/stats", **describe(None, Stats))
    async def stats() -> Response:
        """What the server is doing now, and has done since it started."""
        return json_response(service.stats.read())

    return routes


def _health(service: Service) -> Response:
    if service.lifecycle.is_draining:
        return _unwell("shutting down")
    if not service.engine.is_alive:
        return _unwell("the engine is dead")
    return json_response(Health(status="ok"))


def _unwell(status: str) -> Response:
    response = json_response(Health(status=status))
    response.status_code = 503
    return response
