"""`/v1/completions`. Must not know the engine."""

import msgspec

from mini_vllm.server.protocol.common import GenerationRequest, RequestReport, Usage


class CompletionRequest(GenerationRequest, kw_only=True, frozen=True):
    """A prompt to continue: text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None  # needed: a text, token ids, or a list of either
    echo: bool | None = None
    logprobs: int | None = None  # 0 to 20
    best_of: int | None = None  # only if equal to n: there is no choosing among several
    suffix: str | None = None  # only if empty: text cannot be inserted


class CompletionLogprobs(msgspec.Struct, kw_only=True, frozen=True):
    """Four parallel lists, one entry per token; with echo the prompt's first token has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True, frozen=True):
    """A continuation, or in a stream what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class CompletionResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET


class CompletionChunk(msgspec.Struct, kw_only=True, frozen=True):
    """One event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str | None = None
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET
