"""Sampling fields of a request → `SamplingParams`. Pure."""

from dataclasses import replace
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.common import GenerationRequest
from mini_vllm.server.protocol.completions import CompletionRequest
from mini_vllm.server.translate.structured import structured_outputs
from mini_vllm.types import SamplingParams
from mini_vllm.types.params import MAX_LOGPROBS

MAX_TEMPERATURE = 2.0
DEFAULT_COMPLETION_TOKENS = 16
_COPIED = (  # fields whose name and meaning are the same on both sides
    "n",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "speculation",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "allowed_token_ids",
    "bad_token_ids",
    "bad_words",
    "thinking_token_budget",
)


def completion_params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a completion. `max_tokens` 0 is for scoring and needs echo."""
    if request.suffix:
        raise InvalidParameterError("suffix: inserting text is not supported; leave it out", param="suffix")
    n = request.n or 1
    if request.best_of is not None and request.best_of != n:
        raise InvalidParameterError(
            f"best_of is {request.best_of} but n is {n}: choosing among several is not supported; drop best_of",
            param="best_of",
        )
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise InvalidParameterError("max_tokens is 0; it must be at least 1, unless echo is true", param="max_tokens")
    prompt_logprobs = request.logprobs if request.echo else None
    return sampling_params(
        request, defaults, max_tokens=max_tokens, logprobs=request.logprobs, prompt_logprobs=prompt_logprobs
    )


def chat_params(request: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a chat completion. Without a limit, to the end of the context."""
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(request, name)
    if max_tokens is not None and max_tokens < 1:
        raise InvalidParameterError(f"{name} is {max_tokens}; it must be at least 1", param=name)
    if request.top_logprobs is not None:
        if request.top_logprobs and not request.logprobs:
            raise InvalidParameterError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if not 0 <= request.top_logprobs <= MAX_LOGPROBS:
            raise InvalidParameterError(
                f"top_logprobs is {request.top_logprobs}; it must be between 0 and {MAX_LOGPROBS}", param="top_logprobs"
            )
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return sampling_params(request, defaults, max_tokens=max_tokens, logprobs=logprobs)


def sampling_params(request: GenerationRequest, defaults: SamplingParams, **fixed: Any) -> SamplingParams:
    """What all endpoints understand, over the defaults; `fixed` is what an endpoint has decided itself."""
    given = {name: value for name in _COPIED if (value := getattr(request, name)) is not None}
    if (temperature := given.get("temperature")) is not None and temperature > MAX_TEMPERATURE:
        raise InvalidParameterError(
            f"temperature is {temperature}; it must be between 0 and {MAX_TEMPERATURE:g}", param="temperature"
        )
    return replace(defaults, **given, **fixed, structured_outputs=structured_outputs(request))
