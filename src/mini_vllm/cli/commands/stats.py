"""`mini-vllm stats`: what a running server says about itself."""

import json
import time
from typing import Annotated, Any

import typer

from mini_vllm.cli.remote import get
from mini_vllm.cli.render import on_terminal, table, write_json
from mini_vllm.errors import ConfigError


def command(
    url: Annotated[
        str, typer.Option("--url", "-u", envvar="MINI_VLLM_URL", help="address of the server")
    ] = "http://127.0.0.1:8000",
    watch: Annotated[
        float | None, typer.Option("--watch", "-w", envvar="MINI_VLLM_WATCH", help="repeat every so many seconds")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="MINI_VLLM_API_KEY", help="key of a server that asks for one")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json/--text", envvar="MINI_VLLM_JSON", help="print one JSON object a line")
    ] = False,
) -> None:
    """Show what a running server is doing."""
    if watch is not None and not watch > 0:
        raise ConfigError(f"watch is {watch}; it must be a positive number of seconds", param="watch")
    while True:
        stats = read_stats(url, api_key=api_key)
        if as_json:
            write_json(stats)
        else:
            table({name: _show(value) for name, value in stats.items()}, title=url if on_terminal() else None)
        if watch is None:
            return
        time.sleep(watch)


def read_stats(url: str, *, api_key: str | None = None) -> dict[str, Any]:
    """The server's figures (`ConfigError` when nobody answers there). Of several keys the first is sent."""
    try:
        stats = json.loads(get(url, "/stats", api_key=api_key))
    except ValueError:
        stats = None
    if not isinstance(stats, dict):
        raise ConfigError(f"{url} does not answer as a mini-vLLM server does")
    return stats


def _show(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
