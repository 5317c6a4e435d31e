"""How one request wants its tokens chosen. The field names are vLLM's, so that scripts move over."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.types.structured import StructuredOutputsParams

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_N = 128
MAX_BAD_WORDS = 128
THINK, THOUGHT = "<think>", "</think>"  # what stands around the thoughts of models that think
_NUMBERS = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "logprobs", "prompt_logprobs", "thinking_token_budget"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request; validated on construction (`InvalidParameterError`).

    Lists are accepted for the tuple fields and frozen, NumPy's numbers for plain ones. Transforms apply in this order:
    grammar mask, allowed and banned tokens, logit bias, penalties, (greedy rows stop here) temperature, top-k, top-p,
    min-p, draw.
    """

    n: int = 1  # independent completions of the prompt
    max_tokens: int | None = 16  # None: to the end of the context
    min_tokens: int = 0  # EOS and stop tokens are masked, stop strings not matched, before this many
    temperature: float = 1.0  # 0 is greedy; ties go to the lowest token id
    top_k: int = 0  # 0 or -1: off; larger than the vocabulary: clamped
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output: positive logits divided, negative multiplied
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    seed: int | None = None  # None: a fresh random one
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its raw logit
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_token_ids: tuple[int, ...] = ()  # never sampled
    bad_words: tuple[str, ...] = ()  # never in the text, whatever tokens would write them; a required form goes before
    thinking_token_budget: int | None = None  # thoughts (between <think> and </think>) longer than this are ended
    logprobs: int | None = None  # how many alternatives to report beside the chosen token; 0: only the chosen
    prompt_logprobs: int | None = None  # the same for prompt tokens; None: not computed
    speculation: bool = True  # False: nothing is guessed ahead for this request; its tokens are the same either way
    structured_outputs: StructuredOutputsParams | None = None  # what the whole output must look like

    def __post_init__(self) -> None:
        self._freeze()
        _check_int("n", self.n, low=1, high=MAX_N)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, low=0)
        _check_int("min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}: min_tokens must not exceed it",
                param="min_tokens",
            )
        _check_int("top_k", self.top_k, low=-1)
        _check_float("temperature", self.temperature, low=0.0, high=1e6)
        _check_float("top_p", self.top_p, low=0.0, high=1.0, low_open=True)
        _check_float("min_p", self.min_p, low=0.0, high=1.0)
        _check_float("repetition_penalty", self.repetition_penalty, low=0.0, high=1e6, low_open=True)
        _check_float("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_float("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        if self.seed is not None:
            _check_int("seed", self.seed, low=-(2**63), high=2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                _check_int(name, count, low=0, high=MAX_LOGPROBS)
        if self.thinking_token_budget is not None:
            _check_int("thinking_token_budget", self.thinking_token_budget, low=0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "speculation"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidParameterError(f"{name} is {value!r:.100}; it must be True or False", param=name)
        _check_texts("stop", self.stop, most=MAX_STOPS)
        _check_texts("bad_words", self.bad_words, most=MAX_BAD_WORDS)
        self._check_token_ids()
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise InvalidParameterError(
                f"structured_outputs is {self.structured_outputs!r:.100}; give a StructuredOutputsParams",
                param="structured_outputs",
            )

    @property
    def greedy(self) -> bool:
        """Whether tokens are chosen by argmax rather than drawn."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def guided(self) -> bool:
        """Whether what was written before decides which tokens may come next."""
        return self.structured_outputs is not None or bool(self.bad_words) or self.thinking_token_budget is not None

    def _freeze(self) -> None:
        set_field = object.__setattr__
        for name in _NUMBERS:
            set_field(self, name, _plain(getattr(self, name)))
        set_field(self, "stop", (self.stop,) if isinstance(self.stop, str) else _frozen("stop", self.stop or ()))
        words = (self.bad_words,) if isinstance(self.bad_words, str) else _frozen("bad_words", self.bad_words or ())
        set_field(self, "bad_words", words)
        set_field(self, "stop_token_ids", _frozen("stop_token_ids", self.stop_token_ids))
        set_field(self, "bad_token_ids", _frozen("bad_token_ids", self.bad_token_ids))
        if self.allowed_token_ids is not None:
            set_field(self, "allowed_token_ids", _frozen("allowed_token_ids", self.allowed_token_ids))
        if not isinstance(self.logit_bias, Mapping | None):
            raise InvalidParameterError(
                f"logit_bias is {self.logit_bias!r:.100}; it must map token ids to numbers", param="logit_bias"
            )
        biases = {_plain(token_id): _plain(bias) for token_id, bias in (self.logit_bias or {}).items()}
        set_field(self, "logit_bias", biases)

    def _check_token_ids(self) -> None:
        _check_ids("stop_token_ids", self.stop_token_ids)
        _check_ids("bad_token_ids", self.bad_token_ids)
        _check_ids("logit_bias", self.logit_bias)
        for token_id, bias in self.logit_bias.items():
            _check_float(f"logit_bias[{token_id}]", bias, low=-100.0, high=100.0)
        if self.allowed_token_ids is not None:
            _check_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidParameterError(
                    "allowed_token_ids is empty: no token could ever be sampled; leave it out to allow all",
                    param="allowed_token_ids",
                )


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's; anything else as it is."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _frozen(name: str, values: Any) -> tuple[Any, ...]:
    if values is None:
        return ()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidParameterError(f"{name} is {values!r:.100}; it must be a list", param=name)
    return tuple(_plain(value) for value in values)


def _check_int(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer", param=name)
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidParameterError(f"{name} is {value}; it must be {limit}", param=name)


def _check_float(name: str, value: Any, *, low: float, high: float, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise InvalidParameterError(f"{name} is {value!r}; it must be a finite number", param=name)
    if value < low or value > high or (low_open and value == low):
        opening = "(" if low_open else "["
        raise InvalidParameterError(f"{name} is {value}; it must lie in {opening}{low}, {high}]", param=name)


def _check_texts(name: str, texts: tuple[Any, ...], *, most: int) -> None:
    if len(texts) > most:
        raise InvalidParameterError(f"{name} has {len(texts)} strings; at most {most} are allowed", param=name)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidParameterError(f"{name} contains {text!r:.100}; each must be a non-empty string", param=name)


def _check_ids(name: str, ids: Iterable[Any]) -> None:
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            raise InvalidParameterError(f"{name} contains {token_id!r}; it must be a token id ≥ 0", param=name)
