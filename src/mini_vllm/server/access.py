"""Who may ask: API keys, the names that this server answers to, and the pages that may call it.

Pure ASGI, before any route: what is not allowed here is denied, whatever routes there are. Must not know the routes.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm.config import ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.errors import RequestRefused, error_response

OPEN_PATHS = frozenset({"/", "/health"})  # the chat page, which holds nothing and asks for the key, and liveness
WS_PROTOCOL = "mini-vllm"
WS_KEY_PREFIX = "mini-vllm-key."  # a browser cannot set headers on a WebSocket, but it can offer subprotocols
POLICY_VIOLATION = 1008


def read_keys(config: ServerConfig) -> tuple[str, ...]:
    """The keys that a configuration names. `ConfigError` if there are none where it names some, or a bad one."""
    keys = split_list(config.api_key)
    if config.api_key is not None and not keys:  # an unset variable, say: it must not open the server to everybody
        raise ConfigError(
            f"api_key is {config.api_key!r}, which holds no key; give one or leave it out", param="api_key"
        )
    if config.api_key_file is not None:
        try:
            lines = Path(config.api_key_file).read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"api_key_file {config.api_key_file!r}: {error}", param="api_key_file") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise ConfigError(
                f"api_key_file {config.api_key_file!r} has no keys; write one on each line", param="api_key_file"
            )
        keys += found
    for key in keys:
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError("an API key has spaces or characters beyond ASCII; clients could not send it")
    return tuple(dict.fromkeys(keys))


def split_list(text: str | None) -> list[str]:
    """The entries of a setting that holds several, separated by commas."""
    return [entry.strip() for entry in (text or "").split(",") if entry.strip()]


class KeyCheck:
    """Lets a request pass that has a key: `Authorization: Bearer KEY`, `x-api-key: KEY`, or a subprotocol.

    All routes need one but `OPEN_PATHS`, which may be read by anybody. Who it is goes into `scope["state"]["client"]`.
    Without keys everybody may ask, and a client is its address.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        number = self._find(_presented(headers)) if self._digests else None
        if number is None and self._digests and not _is_open(scope):
            refusal = RequestRefused(
                401,
                "a valid API key is needed; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
            await deny(refusal, scope, receive, send)
            return
        address = (scope.get("client") or ("unknown",))[0]
        scope.setdefault("state", {})["client"] = f"address {address}" if number is None else f"key {number}"
        await self._app(scope, receive, send)

    def _find(self, presented: Iterable[str]) -> int | None:
        """Which key was sent. Takes as long for a wrong key as for a right one, whichever it is."""
        found = None
        for text in presented:
            digest = _digest(text)
            for number, known in enumerate(self._digests, 1):
                if hmac.compare_digest(digest, known):
                    found = number
        return found


class PlaceCheck:
    """Keeps other web sites out of a server that trusts its own machine.

    A server on a loopback address answers only to names of this machine, so that no site can point a name of its own at
    it; and a browser's request must come from a page of this server or from an allowed origin. WebSockets need that
    wherever the server listens, since browsers open them across origins.
    """

    def __init__(self, app: ASGIApp, *, host: str, allowed_hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._on_loopback = is_loopback(host)
        self._hosts = frozenset(name.lower() for name in allowed_hosts)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] not in ("http", "websocket") or (refusal := self._refusal(scope)) is None:
            await self._app(scope, receive, send)
        else:
            await deny(refusal, scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestRefused | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name = _host_name(host)
        if (self._on_loopback or self._hosts) and not (
            name in self._hosts or (self._on_loopback and is_loopback(name))
        ):
            return RequestRefused(
                403,
                f"this server does not answer to the host {host!r:.100}; start it with --allowed-hosts to change that",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is None or not (self._on_loopback or scope["type"] == "websocket") or self._is_allowed(origin, host):
            return None
        return RequestRefused(
            403,
            f"pages of {origin!r:.100} may not call this server; start it with --cors-origins to change that",
            code="origin_not_allowed",
        )

    def _is_allowed(self, origin: str, host: str) -> bool:
        origin = origin.lower()
        return "*" in self._origins or origin in self._origins or urlsplit(origin).netloc == host


async def deny(refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or refuse a WebSocket before it is one: with the error where the server can send it."""
    if scope["type"] == "http":
        await error_response(refusal)(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        response = error_response(refusal)
        await send(
            {
                "type": "websocket.http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": str(refusal)[:120]})


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine and nobody else's."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def offered_protocols(headers: Headers) -> list[str]:
    """The subprotocols that a WebSocket client offers."""
    return split_list(headers.get("sec-websocket-protocol"))


def _host_name(host: str) -> str:
    """`[::1]:8000` → `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_open(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS


def _presented(headers: Headers) -> list[str]:
    """Every text in a request that claims to be a key."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    found = [credentials.strip()] if scheme.lower() == "bearer" else []
    if (key := headers.get("x-api-key")) is not None:
        found.append(key)
    prefix = WS_KEY_PREFIX
    return found + [offer.removeprefix(prefix) for offer in offered_protocols(headers) if offer.startswith(prefix)]


def _digest(text: str) -> bytes:
    """Of equal length for all texts, so that comparing says nothing about lengths."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
