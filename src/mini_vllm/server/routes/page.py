"""GET / and /docs: the chat page and the page about the API, each one file that needs no other."""

from importlib.resources import files

from fastapi import APIRouter, Response

# The page may talk to this server and to nobody else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def router() -> APIRouter:
    """The routes."""
    routes = APIRouter()
    folder = files("mini_vllm.server").joinpath("static")
    page, about = (folder.joinpath(name).read_bytes() for name in ("index.html", "docs.html"))
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}

    @routes.get("/", include_in_schema=False)
    async def index() -> Response:
        """A page to chat with the model."""
        return Response(page, media_type="text/html", headers=headers)

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """A page that shows every URL and its fields, and tries them."""
        return Response(about, media_type="text/html", headers=headers)

    return routes
