"""Prompts as vectors: what may be asked for, and the last steps after the model's own. Must not know HTTP."""

import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, get_args

from mini_vllm.engine.assembly import EngineFront
from mini_vllm.engine.batch import read_embedding
from mini_vllm.engine.client import EngineClient
from mini_vllm.errors import InvalidParameterError
from mini_vllm.types import Embedding, Pooling, Request

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


async def embed(client: EngineClient, request: Request) -> Embedding:
    """The vector of a request with a pooling, as the model gives it. Leaving early aborts."""
    async with aclosing(client.submit(request)) as tokens:
        delta = await anext(aiter(tokens))
        return read_embedding(delta, request.prompt_token_ids)


def check_dimensions(dimensions: Any, engine: EngineFront) -> None:
    """Refuse a number of dimensions that the model does not have."""
    most = None if engine.info is None else engine.info.hidden_size
    is_number = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if dimensions is not None and not (is_number and 1 <= dimensions <= (most or dimensions)):
        raise InvalidParameterError(
            f"dimensions is {dimensions!r:.100}; it must be between 1 and {most}", param="dimensions"
        )


def fit_vector(vector: Sequence[float], dimensions: int | None, *, normalize: bool) -> list[float]:
    """Its first `dimensions` numbers, of length 1 if `normalize`; zeros stay zeros."""
    kept = list(vector[:dimensions])
    length = math.sqrt(math.fsum(x * x for x in kept)) if normalize else 1.0
    return [x / length for x in kept] if length else kept
