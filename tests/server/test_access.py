"""Keys, hosts, origins: who may ask, on every route that there is."""

import socket
from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from server.rig import Rig, error, serving
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from mini_vllm.config import ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.access import OPEN_PATHS, is_loopback, read_keys

KEY, OTHER = "first-key", "second+key/="


@pytest.fixture(scope="module")
def locked() -> Iterator[Rig]:
    """A server with two keys."""
    with serving(server=ServerConfig(api_key=f"{KEY}, {OTHER}", cors_origins="https://page.example")) as rig:
        yield rig


def routes_of(rig: Rig) -> list[BaseRoute]:
    found: list[BaseRoute] = []

    def walk(routes: list[BaseRoute]) -> None:
        for route in routes:
            inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
            if inner:
                walk(inner)
            else:
                found.append(route)

    walk(rig.app.router.routes)
    return found


def http_calls(rig: Rig) -> list[tuple[str, str]]:
    """Every method and path, parameters filled in."""
    calls = []
    for route in routes_of(rig):
        if isinstance(route, Route | APIRoute):
            path = route.path.replace("{model:path}", "parrot")
            calls += [(method, path) for method in sorted(route.methods or ())]
    return calls


def test_srv_07_the_walk_sees_every_route(locked: Rig) -> None:
    assert not [route for route in routes_of(locked) if isinstance(route, Mount)]
    calls = http_calls(locked)
    assert {("POST", "/v1/chat/completions"), ("GET", "/stats"), ("GET", "/openapi.json"), ("GET", "/")} <= set(calls)
    known = {route.path for route in routes_of(locked) if isinstance(route, Route | WebSocketRoute | APIWebSocketRoute)}
    assert set(locked.app.openapi()["paths"]) <= known | {"/v1/models/{model}"}


def test_srv_07_every_route_denies_by_default(locked: Rig) -> None:
    for method, path in http_calls(locked):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-api-key": KEY + "x"}):
            response = locked.http.request(method, path, headers=headers)
            if path in OPEN_PATHS:
                assert response.status_code == 200, (method, path)
                continue
            assert response.status_code == 401, (method, path, headers)
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert error(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/",
        "//v1/models",
        "/%2Fv1/models",
        "/health/",
        "/health/../v1/models",
        "//health",
        "/HEALTH",
        "/%68ealth/x",
        "/nothing",
        "/metrics",
        "/docs",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "FROB"])
def test_srv_07_no_spelling_goes_round_the_key(locked: Rig, method: str, path: str) -> None:
    url = httpx.URL(locked.url)
    with socket.create_connection((url.host, url.port), timeout=5) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as file:
            assert file.readline().startswith(b"HTTP/1.1 401")


def test_srv_07_posts_to_open_paths_need_a_key(locked: Rig) -> None:
    for path in OPEN_PATHS:
        assert locked.http.post(path).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {OTHER}"},
        {"x-api-key": OTHER},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
    ],
)
def test_each_key_opens(locked: Rig, headers: dict[str, str]) -> None:
    assert locked.http.get("/v1/models", headers=headers).status_code == 200


def test_cors_answers_preflights_without_a_key_and_only_for_listed_origins(locked: Rig) -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    allowed = locked.http.options("/v1/chat/completions", headers={"origin": "https://page.example", **ask})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    refused = locked.http.options("/v1/chat/completions", headers={"origin": "https://other.example", **ask})
    assert "access-control-allow-origin" not in refused.headers and refused.status_code >= 400
    models = locked.http.get("/v1/models", headers={"origin": "https://page.example", "x-api-key": KEY})
    assert models.headers["access-control-allow-origin"] == "https://page.example"


def test_cors_is_off_by_default_and_foreign_pages_are_refused(rig: Rig) -> None:
    own = rig.http.get("/v1/models", headers={"origin": rig.url})
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        refused = rig.http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"origin": origin})
        assert refused.status_code == 403
        assert error(refused)["code"] == "origin_not_allowed"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "[::2]:1", "0.0.0.0"])
def test_a_loopback_server_answers_to_no_other_name(rig: Rig, host: str) -> None:
    refused = rig.http.get("/v1/models", headers={"host": host})
    assert refused.status_code == 403
    assert error(refused)["code"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.8.8:1", "[::1]:8000", "a.localhost"])
def test_a_loopback_server_answers_to_its_names(rig: Rig, host: str) -> None:
    assert rig.http.get("/v1/models", headers={"host": host}).status_code == 200


def test_allowed_hosts_are_answered_to() -> None:
    with serving(server=ServerConfig(allowed_hosts="llm.example")) as rig:
        assert rig.http.get("/health", headers={"host": "llm.example:443"}).status_code == 200
        assert rig.http.get("/health", headers={"host": "other.example"}).status_code == 403
        assert rig.http.get("/health").status_code == 200


def test_a_server_for_others_answers_to_any_name() -> None:
    assert not is_loopback("0.0.0.0")
    with serving(server=ServerConfig(host="0.0.0.0")) as rig:
        assert rig.http.get("/health", headers={"host": "llm.example"}).status_code == 200


def test_keys_come_from_files_too(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n a \n\nb\na\n")
    assert read_keys(ServerConfig(api_key="c,a", api_key_file=str(file))) == ("c", "a", "b")
    assert read_keys(ServerConfig()) == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "two words\n", "schlüssel\n"])
def test_key_files_without_usable_keys_are_refused(tmp_path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_keys(ServerConfig(api_key_file=str(file)))
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(ServerConfig(api_key_file=str(tmp_path / "missing")))
    for nothing in ("", " , "):
        with pytest.raises(ConfigError, match="holds no key"):
            read_keys(ServerConfig(api_key=nothing))
