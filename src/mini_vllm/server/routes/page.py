"""GET /: the chat page, one file that needs no other."""

from importlib.resources import files

from fastapi import APIRouter, Response

# The page may talk to this server and to nobody else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def router() -> APIRouter:
    """The route."""
    routes = APIRouter()
    page = files("mini_vllm.server").joinpath("static/index.html").read_bytes()
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}

    @routes.get("/", include_in_schema=False)
    async def index() -> Response:
        """A page to chat with the model."""
        return Response(page, media_type="text/html", headers=headers)

    return routes
