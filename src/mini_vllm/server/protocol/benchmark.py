"""`/benchmark` and what earlier measurements and simulations have left. Must not know the engine."""

from typing import Annotated, Any

import msgspec


class BenchmarkRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A small measured run: so many requests at once, each with this prompt and exactly this many new tokens."""

    prompt: str = "Once upon a time"
    requests: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=256)] = 64
    model: str | None = None


class Spread(msgspec.Struct, kw_only=True, frozen=True):
    """One quantity over all requests, in milliseconds."""

    mean: float
    p50: float
    max: float


class BenchmarkResponse(msgspec.Struct, kw_only=True, frozen=True):
    """What was measured. What else the server does meanwhile counts in."""

    model: str
    requests: int
    prompt_tokens: int  # of all requests
    output_tokens: int
    seconds: float  # from the first request to the end of the last
    tokens_per_second: float  # output, over all requests
    requests_per_second: float
    ttft_ms: Spread  # to the first token
    latency_ms: Spread  # to the last
    ms_per_token: Spread | None  # after the first token; null where there is only one


class RecordFile(msgspec.Struct, kw_only=True, frozen=True):
    """A file, and the JSON in it."""

    name: str
    modified: float  # seconds since 1970
    content: Any


class RecordFiles(msgspec.Struct, kw_only=True, frozen=True):
    """The newest files of a folder, newest first."""

    folder: str
    files: list[RecordFile]
