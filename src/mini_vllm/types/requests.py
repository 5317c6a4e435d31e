"""What the front end hands to the engine: one sequence to generate, fully resolved."""

from dataclasses import dataclass
from typing import Literal

from mini_vllm.types.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["mean", "last"]  # how the hidden states of a prompt become one vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Who asks, and by when it is needed: what some scheduling policies go by beside the priority."""

    key: str = ""  # an API key, a user, a tenant: the fair policy gives each the same share
    deadline: float | None = None  # seconds on the engine's clock: the deadline policy serves the earliest first


ANYONE = Standing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate (n completions are n requests that share a `parent_id`).

    Resolved by the front end: `max_tokens` is a number that fits the context, `eos_token_ids` is empty under
    ignore_eos, `stop_token_ids` holds the user's (and stop strings that are one special token), `noise_key` is a
    64-bit hash of (seed, choice index, prompt ids): all the randomness that the request will ever use.
    """

    request_id: str  # unique among live requests
    parent_id: str  # the id that the user knows
    choice_index: int = 0
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int  # 0: only score the prompt
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    noise_key: int = 0
    priority: int = 0  # lower runs first, under the priority policy; a victim of preemption is the highest
    arrival: float = 0.0  # seconds on the engine's clock
    key: str = ""  # as in Standing
    deadline: float | None = None  # as in Standing
    cache_salt: str = ""  # prefix blocks are shared only between requests of equal salt
    pooling: Pooling | None = None  # with max_tokens 0: give the prompt's hidden state as one vector
