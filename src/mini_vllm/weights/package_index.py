"""A small client of Python's package index (the simple API, HTML or JSON): find one file and fetch it, resuming.

Standard library only. Knows nothing of what is in the file.
"""

import base64
import html
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT = 20.0  # seconds without a byte
_PIECE = 2**18
_LARGEST_PAGE = 2**26
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


class IndexFailed(Exception):
    """The file could not be had this way; the text says why, in a few words."""


def index_urls() -> list[str]:
    """The indexes to ask, first one first: what the environment names, else what pip is set up to use."""
    env = os.environ
    if env.get("PIP_NO_INDEX"):
        raise IndexFailed("PIP_NO_INDEX forbids to ask an index")
    main = env.get("PIP_INDEX_URL") or env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or _index_of_pip()
    if main is None:
        raise IndexFailed("no index is known, for pip is not installed and PIP_INDEX_URL is not set")
    return [main, *env.get("PIP_EXTRA_INDEX_URL", "").split()]


def _index_of_pip() -> str | None:
    """The default that pip's own help states, its configuration files taken into account."""
    if find_spec("pip") is None:
        return None
    command = [sys.executable, "-m", "pip", "download", "--help"]
    help_text = subprocess.run(
        command, env={**os.environ, "COLUMNS": "1000"}, capture_output=True, text=True, check=False
    ).stdout
    match = re.search(r"--index-url\s.*?\(default:?\s+(\S+?)\)", help_text, re.DOTALL)
    return match[1] if match else None


def fetch_from_index(
    package: str, file_name: str, partial: Path, *, progress: Callable[[int, int | None], None] | None = None
) -> None:
    """Bring the named file of a package into `partial`, going on where `partial` ends if the server can."""
    failures = []
    for url in index_urls():
        try:
            _download(_find(url, package, file_name), partial, progress)
            return
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"{_without_password(url)}: {_reason(error)}")
    raise IndexFailed("; ".join(failures))


def _find(index: str, package: str, file_name: str) -> str:
    page_url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    with _open(page_url, {"Accept": _ACCEPT}) as response:
        body = response.read(_LARGEST_PAGE).decode("utf-8", "replace")
        base, kind = response.geturl(), response.headers.get("Content-Type") or ""
    links = _json_links(body) if "json" in kind else [html.unescape(link) for link in _LINK.findall(body)]
    for link in links:
        if unquote(urlsplit(link).path).rsplit("/", 1)[-1] == file_name:
            found = urlsplit(urljoin(base, link))
            if found.scheme not in ("http", "https", "file"):
                raise ValueError(f"the index points to a {found.scheme} address")
            return _with_password(urlunsplit(found._replace(fragment="")), page_url)
    raise ValueError(f"it has no {file_name}")


def _json_links(body: str) -> list[str]:
    page: Any = json.loads(body)
    return [str(file["url"]) for file in page["files"]] if isinstance(page, dict) and "files" in page else []


def _download(url: str, partial: Path, progress: Callable[[int, int | None], None] | None) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    with _open(url, {"Range": f"bytes={have}-"} if have else {}) as response:
        if have and response.status != 206:
            have = 0  # the server sent the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with partial.open("ab" if have else "wb") as sink:
            while piece := response.read(_PIECE):
                sink.write(piece)
                have += len(piece)
                if progress is not None:
                    progress(have, total)
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes; the next try goes on from there")


def _open(url: str, headers: dict[str, str]) -> HTTPResponse:
    parts = urlsplit(url)
    headers = {"User-Agent": "mini-vllm", "Accept-Encoding": "identity", **headers}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
    try:
        response: HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(_without_password(url), headers=headers), timeout=_TIMEOUT, context=_tls()
        )
        return response
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what is there is the whole file, or not of this file: begin again
            headers.pop("Range", None)
            return _open(url, headers)
        raise


def _tls() -> ssl.SSLContext:
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle if bundle and os.path.isfile(bundle) else None)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _with_password(url: str, page_url: str) -> str:
    """The page's user and password go to its own host only."""
    page, file = urlsplit(page_url), urlsplit(url)
    if page.username is None or file.username is not None or (page.hostname, page.port) != (file.hostname, file.port):
        return url
    return urlunsplit(file._replace(netloc=page.netloc))


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
