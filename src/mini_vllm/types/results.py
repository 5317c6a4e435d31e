"""What comes back: from the executor (`StepResult`), the engine (`TokenDelta`), the front end (`TextDelta`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mini_vllm.types.requests import FinishReason
from mini_vllm.types.stats import StepStats


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the raw model logits in float32, before any transform."""

    token_id: int
    logprob: float
    rank: int  # 1 = most likely
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first; as many as were asked for


class SequenceOutput(msgspec.Struct, frozen=True, gc=False):
    """What one chunk produced. `token_ids` is empty when the chunk did not reach the last known token."""

    seq_id: int
    token_ids: tuple[int, ...] = ()  # the sampled token; with drafts, the accepted ones and the one after
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id, if asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # Outputs.ALL: of prompt positions start+1 … start+len(chunk)
    next_drafts: tuple[int, ...] = ()
    hidden: tuple[float, ...] = ()  # Outputs.HIDDEN: the pooled vector [H], once the chunk ends the prompt
    complete: bool = False  # the last token completes the grammar and nothing may follow: the sequence stops
    error: str | None = None  # this sequence cannot go on; the others can


@dataclass(frozen=True, slots=True)
class StepResult:
    """One output for each chunk of the plan that asks for something, in plan order."""

    step_id: int
    outputs: tuple[SequenceOutput, ...] = ()
    seconds: float = 0.0  # time spent in the executor


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of one sequence, or of all choices of a request together, in seconds on the engine's clock.

    A sequence waits from `arrival` to `started`, reads its prompt until `first_token`, writes until `last_token`. All
    are taken where the work is done: by the scheduler, at the top of the plan or when the step's tokens are committed.
    """

    arrival: float = 0.0  # its prompt was tokenised and it was handed to the engine
    started: float | None = None  # first time in a step; None: it never was
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    num_preemptions: int = 0
    num_forwards: int = 0  # steps of the target model that chose its tokens
    num_drafts: int = 0  # guesses that they verified
    num_drafts_accepted: int = 0


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """New tokens of one request. The last delta of a request has a finish_reason."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # with the first delta: prompt tokens 1 … (token 0 has none)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the EOS or stop token that ended it (it is the last of token_ids)
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    error: str | None = None  # with finish_reason "error"
    refused: bool = False  # the error lies in what was asked for, and not in the engine
    time: float = 0.0  # when the tokens were committed, on the engine's clock
    num_preemptions: int = 0  # so far
    metrics: RequestMetrics | None = None  # with the first token, and with the last delta
    embedding: tuple[float, ...] = ()  # of a request with a pooling, in its only delta


def join_deltas(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """Deltas of one request, in order, as one that came with the last of them."""
    last = deltas[-1]
    return msgspec.structs.replace(
        last,
        token_ids=tuple([token_id for delta in deltas for token_id in delta.token_ids]),
        logprobs=tuple([report for delta in deltas for report in delta.logprobs]),
        prompt_logprobs=deltas[0].prompt_logprobs,
        num_cached_tokens=max([delta.num_cached_tokens for delta in deltas]),
        metrics=last.metrics or deltas[0].metrics,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New text of one choice of a user's request. The last delta of a choice has a finish_reason.

    Concatenating `text` over the deltas of a choice gives exactly the non-streamed text.
    """

    request_id: str  # the user's (parent) id
    choice_index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that matched; None for EOS
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0  # of this choice so far
    num_cached_tokens: int = 0
    error: str | None = None
    refused: bool = False  # the error lies in what was asked for, and not in the engine
    metrics: RequestMetrics | None = None  # with the first token, and with the last delta of the choice


@dataclass(slots=True)
class CompletionOutput:
    """One completion, as vLLM names it."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True, kw_only=True)
class Embedding:
    """A prompt as one vector."""

    prompt_token_ids: list[int]
    vector: list[float]
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its completions, as vLLM names it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # the first entry is None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None  # of all choices together; None before the first token


__all__ = [
    "CompletionOutput",
    "Embedding",
    "RequestMetrics",
    "RequestOutput",
    "SequenceOutput",
    "StepResult",
    "StepStats",
    "TextDelta",
    "TokenDelta",
    "TokenLogprobs",
]
