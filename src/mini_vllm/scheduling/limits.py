"""What can never be served, refused before it waits. This module must not know queues or steps."""

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, ContextLengthError, InvalidParameterError
from mini_vllm.types import Request


def check_config(config: SchedulerConfig) -> None:
    """`ConfigError` for a budget below the number of rows."""
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens} but max_num_seqs is "
            f"{config.max_num_seqs}: every running sequence needs a token per step; raise the first",
            param="max_num_batched_tokens",
        )


def check_request(request: Request, *, max_model_len: int, max_kv_len: int, cache_capacity: int) -> None:
    """Raises `ContextLengthError` unless prompt and max_tokens fit the context and what the cache can hold.

    A request whose `params.max_tokens` is None goes to the end of what fits: only its prompt and one token must fit.
    """
    if not request.prompt_token_ids:
        raise InvalidParameterError("the prompt has 0 tokens; at least 1 is needed", param="prompt")
    num_prompt, wanted = len(request.prompt_token_ids), request.max_tokens
    if request.params.max_tokens is None:
        wanted = min(wanted, 1)
    asked = f"the prompt has {num_prompt} tokens and max_tokens is {wanted}"
    if num_prompt + wanted > max_model_len:
        raise ContextLengthError(
            f"{asked}: {num_prompt + wanted} exceed the context of {max_model_len} tokens; shorten the "
            "prompt or lower max_tokens",
            param="prompt",
        )
    if max(num_prompt, num_prompt + wanted - 1) > max_kv_len:
        name = "num_blocks" if max_kv_len == cache_capacity else "max_num_batched_tokens"
        limit = "the KV cache can hold" if name == "num_blocks" else "one step can compute without a KV cache"
        raise ContextLengthError(
            f"{asked}: more than the {max_kv_len} tokens that {limit}; shorten the prompt, lower max_tokens "
            f"or raise {name}",
            param="prompt",
        )
