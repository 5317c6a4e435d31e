"""A server process: the port first, then the model, then requests, then an orderly end.

Signals: the first stops accepting, lets running requests finish for `shutdown_timeout` seconds, ends the rest with an
error and exits with 0; the second ends the process at once. While the model loads, the first does.
"""

import asyncio
import contextlib
import errno
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator

import uvicorn

from mini_vllm.config import EngineConfig, ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.access import read_keys, split_list
from mini_vllm.server.app import create_app
from mini_vllm.server.door import TextEngine
from mini_vllm.server.service import Service

SECONDS_TO_SAY_GOODBYE = 3.0  # between ending what still runs and closing the connections
SECONDS_TO_OBEY = 1.5  # of those, for an engine that was told to end what still runs
KEEP_ALIVE_SECONDS = 75
HUNG_EXIT_CODE = 70
BACKLOG = 2048


def run(
    engine_config: EngineConfig, server_config: ServerConfig, *, prepare: Callable[[], object] | None = None
) -> int:
    """Serve a model until a signal; the process's exit code. A `UserError` if the port or the model cannot be had.

    `prepare` is called when the port is held and nothing is loaded yet: the time to fetch the model.
    """
    from mini_vllm.engine.async_llm import AsyncLLM

    model = engine_config.model
    names = dict.fromkeys((*split_list(model.served_model_name), model.model))
    llm = AsyncLLM.from_config(engine_config, engine_form=server_config.engine_form)
    return serve(llm, server_config, model_names=tuple(names), prepare=prepare)


def serve(
    llm: TextEngine,
    config: ServerConfig,
    *,
    model_names: tuple[str, ...],
    prepare: Callable[[], object] | None = None,
) -> int:
    """Serve an engine that is not started yet. Call it from the main thread."""
    read_keys(config)  # what is wrong with the settings is said before anything is loaded
    _check_tls(config)
    with bind(config.host, config.port) as listener:
        if prepare is not None:
            prepare()
        return asyncio.run(_serve(llm, config, listener, model_names))


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address but does not listen yet; `ConfigError` says why there is none."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; it must be between 0 and 65535 (0 picks a free one)", param="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"host is {host!r}; it is not an address of this machine", param="host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # :: takes IPv4 as well
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _bind_error(error, host, port) from None
    return listener


def _bind_error(error: OSError, host: str, port: int) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            text = f"port {port} on {host} is in use; stop what uses it or choose another (--port 0 picks a free one)"
        case errno.EACCES:
            text = f"port {port} needs more rights than this user has; choose one from 1024 on"
        case errno.EADDRNOTAVAIL:
            return ConfigError(f"host is {host!r}; it is not an address of this machine", param="host")
        case _:
            text = f"cannot listen on port {port} of {host}: {error.strerror}"
    return ConfigError(text, param="port")


async def _serve(llm: TextEngine, config: ServerConfig, listener: socket.socket, model_names: tuple[str, ...]) -> int:
    stopper = _Stopper(config.shutdown_timeout)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopper.stop, number)
    await llm.start()
    app = create_app(llm, config, model_names=model_names)
    service: Service = app.state.service
    server = _Server(
        service,
        uvicorn.Config(
            app,
            backlog=BACKLOG,
            lifespan="on",
            ws="websockets-sansio",
            ws_max_size=config.max_body_bytes,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(config.shutdown_timeout + SECONDS_TO_SAY_GOODBYE),
        ),
    )
    stopper.arm(server, service)
    leaving = asyncio.create_task(_leave_when_hung(service.hung))
    try:
        await server.serve(sockets=[listener])
    except OSError as error:
        raise _bind_error(error, config.host, listener.getsockname()[1]) from None
    finally:
        leaving.cancel()
    return 0


async def _leave_when_hung(hung: asyncio.Event) -> None:
    """A thread that hangs cannot be freed: end the process for its supervisor, once waiting clients have an error."""
    await hung.wait()
    await asyncio.sleep(SECONDS_TO_SAY_GOODBYE)
    print("the engine has hung; leaving", file=sys.stderr, flush=True)
    os._exit(HUNG_EXIT_CODE)


class _Server(uvicorn.Server):
    """uvicorn's, but signals are the stopper's, it says when it is ready, and WebSockets end in good order."""

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then print the URL."""
        await super().startup(sockets)
        if self.started and sockets:
            print(f"mini-vLLM is ready: {_url(sockets[0], is_tls=self.config.is_ssl)}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let WebSockets say goodbye, then what uvicorn does: close them all, finish what runs."""
        for server in self.servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._service.lifecycle.sockets_closed()
        await super().shutdown(sockets)


class _Stopper:
    """What a signal does, from the start of the process to its end."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._server: uvicorn.Server | None = None
        self._service: Service | None = None

    def arm(self, server: uvicorn.Server, service: Service) -> None:
        """From now on there is a server to stop in good order."""
        self._server, self._service = server, service

    def stop(self, number: signal.Signals) -> None:
        """First call: drain. Any other, or nothing to drain yet: leave."""
        if self._server is None or self._service is None or self._service.lifecycle.is_draining:
            sys.stdout.flush()
            os._exit(128 + number)
        running = self._service.lifecycle.num_running
        grace = f": {running} running request(s) may take {self._timeout:g} s to finish (again to stop at once)"
        print("stopping" + (grace if running else ""), flush=True)
        self._service.lifecycle.drain()
        self._server.should_exit = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._timeout, self._service.lifecycle.cut)
        loop.call_later(self._timeout + SECONDS_TO_OBEY, _end_by_force, self._service)


def _end_by_force(service: Service) -> None:
    """An engine that hangs obeys nobody, but its clients get their last event."""
    if service.lifecycle.num_running:
        service.engine.give_up("the engine did not end its requests in time")


def _check_tls(config: ServerConfig) -> None:
    if config.ssl_certfile is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        name = config.ssl_certfile if config.ssl_keyfile is None else f"{config.ssl_certfile}, {config.ssl_keyfile}"
        raise ConfigError(f"the TLS files {name} cannot be used: {error}", param="ssl_certfile") from None


def _url(listener: socket.socket, *, is_tls: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"
