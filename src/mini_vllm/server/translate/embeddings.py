"""Vectors → the answer of `/v1/embeddings`. Pure."""

import base64
import struct
from collections.abc import Sequence

from mini_vllm.server.protocol.embeddings import EmbeddingEntry, EmbeddingResponse, EmbeddingUsage
from mini_vllm.types import Embedding


def embedding_response(model: str, found: Sequence[Embedding], *, as_base64: bool) -> EmbeddingResponse:
    """All of them."""
    num_tokens = sum(len(each.prompt_token_ids) for each in found)
    data = [
        EmbeddingEntry(index=index, embedding=_base64(each.vector) if as_base64 else each.vector)
        for index, each in enumerate(found)
    ]
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return EmbeddingResponse(data=data, model=model, usage=usage)


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
