"""`mini-vllm explain`: why a request took as long as it did."""

from pathlib import Path
from typing import Annotated

import typer

from mini_vllm.cli.remote import get
from mini_vllm.cli.render import write
from mini_vllm.errors import ConfigError

_SECONDS = 30.0  # a trace may be large


def command(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", show_default=False, help="the id of its answer")],
    trace: Annotated[
        Path | None, typer.Option("--trace", envvar="MINI_VLLM_TRACE", help="read this file instead of asking a server")
    ] = None,
    url: Annotated[
        str, typer.Option("--url", "-u", envvar="MINI_VLLM_URL", help="address of the server")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="MINI_VLLM_API_KEY", help="key of a server that asks for one")
    ] = None,
) -> None:
    """Tell in words why a request took as long as it did.

    The trace comes from a running server, or from a file that `mini-vllm simulate` wrote or GET /trace gave.
    """
    from mini_vllm.scheduling import explain, export

    text = _read(trace) if trace is not None else get(url, "/trace", api_key=api_key, seconds=_SECONDS)
    requests, steps = export.from_jsonl(text.splitlines(), source=url if trace is None else str(trace))
    found = explain.find(requests, request_id)
    write("\n".join(explain.explain(request, requests, steps) for request in found))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
