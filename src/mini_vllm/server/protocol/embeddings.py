"""`/v1/embeddings`. Must not know the engine."""

from typing import Annotated, Literal

import msgspec


class EmbeddingRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Texts or token ids to turn into vectors, one for each."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None  # keep the first so many numbers

    # Beyond OpenAI's.
    pooling: Literal["mean", "last"] | None = None  # of the final hidden states; mean if not given
    normalize: bool | None = None  # to length 1, unless false
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: str | None = None
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None


class EmbeddingEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One vector: numbers, or their little-endian float32 in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens read, over all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, kw_only=True, frozen=True):
    """All vectors, in the order of the inputs."""

    object: str = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage
