"""Connections that ask a server and take little note of what it says: a client that costs less than what it measures.

HTTP/1.1 over one socket each, kept open. Must not know what is measured.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mini_vllm.errors import MiniVLLMError

_EVENT = b"data: "
_LAST = b"\r\n0\r\n\r\n"  # the end of a chunked body
_TAIL = 2048  # bytes that are kept of a stream's end: its usage is there


class RequestFailed(MiniVLLMError):
    """A request that was not answered as it should have been."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; times in seconds on the event loop's clock."""

    status: int
    num_events: int  # of a stream, [DONE] left out
    asked: float
    first: float  # first byte of the body
    last: float
    tail: bytes

    def num_tokens(self) -> int:
        """As the server counts them, in the usage of a stream or of a whole answer."""
        before, _, after = self.tail.rpartition(b'"completion_tokens":')
        if not before:
            raise RequestFailed(f"an answer without usage: {self.tail[-200:]!r}")
        return int(after[:12].partition(b",")[0].partition(b"}")[0])


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._has_head = False
        self._head = self._tail = b""
        self._status = self._num_bytes = self._num_events = 0
        self._begin(0.0)

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect to a server."""
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, url
        _, connection = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return connection

    async def ask(self, path: str, body: Mapping[str, Any] | bytes | None = None) -> Answer:
        """GET, or POST where there is a body; anything but a 200 is a `RequestFailed`."""
        assert self._transport is not None
        payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(payload)}\r\n"
        self._begin(self._loop.time())
        self._answer = self._loop.create_future()
        self._transport.write(head.encode() + b"content-type: application/json\r\n\r\n" + payload)
        answer = await self._answer
        if answer.status != 200:
            raise RequestFailed(f"{method} {path} was answered with {answer.status}: {answer.tail[-300:]!r}")
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; whoever waits is told."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RequestFailed(f"the server closed the connection ({exc})"))

    def data_received(self, data: bytes) -> None:
        """Some of an answer."""
        if not self._has_head:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._read_head(head)
        if not data and not self._is_complete():
            return
        if not self._num_bytes:
            self._first = self._loop.time()
        self._num_bytes += len(data)
        self._num_events += data.count(_EVENT)
        self._tail = data if len(data) >= _TAIL else self._tail[-_TAIL:] + data
        if self._is_complete():
            self._finish()

    def _begin(self, now: float) -> None:
        self._asked, self._first = now, now
        self._has_head = False
        self._head = self._tail = b""
        self._status = self._num_bytes = self._num_events = 0
        self._length: int | None = None  # None: chunked

    def _read_head(self, head: bytes) -> None:
        self._has_head = True
        self._status = int(head.split(b" ", 2)[1])
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                self._length = int(value)

    def _is_complete(self) -> bool:
        return self._tail.endswith(_LAST) if self._length is None else self._num_bytes >= self._length

    def _finish(self) -> None:
        assert self._answer is not None
        is_stream = b"data: [DONE]" in self._tail
        answer = Answer(
            status=self._status,
            num_events=self._num_events - is_stream,
            asked=self._asked,
            first=self._first,
            last=self._loop.time(),
            tail=self._tail[-_TAIL:],
        )
        if not self._answer.done():
            self._answer.set_result(answer)
