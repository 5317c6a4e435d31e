"""What the answers of both endpoints have in common: who speaks, which choice, how many tokens. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from mini_vllm.engine.choice import Vocabulary
from mini_vllm.engine.outputs import merge_metrics
from mini_vllm.server.protocol.common import PromptTokensDetails, RequestReport, Usage
from mini_vllm.server.translate.logprobs import Entry, LogprobAligner
from mini_vllm.text import Detokenizer
from mini_vllm.types import RequestMetrics, SamplingParams, TextDelta


@dataclass(frozen=True, slots=True)
class Head:
    """The same in every chunk of an answer."""

    id: str
    created: int  # seconds since 1970
    model: str


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as the engine gets it, and as text where it came as text."""

    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The texts of tokens, as one request wants them."""

    tokenizer: Vocabulary
    skip_special_tokens: bool

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        return self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for."""
        return self.tokenizer.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The same as text; an incomplete character shows as U+FFFD."""
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self, *, after: Sequence[int] = ()) -> Detokenizer:
        """A fresh one, for text that follows these tokens."""
        special_ids = self.tokenizer.special_ids
        return Detokenizer(
            self.tokenizer,
            skip_special_tokens=self.skip_special_tokens,
            keep_leading_space=any(token_id not in special_ids for token_id in after),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one delta adds to a choice."""

    index: int  # prompt · n + choice
    text: str
    entries: list[Entry] | None  # None: no logprobs were asked for
    finish_reason: str | None
    stop_reason: str | int | None
    is_first: bool  # of its choice


@dataclass(slots=True)
class _Choice:
    aligner: LogprobAligner | None
    started: bool = False
    num_prompt: int = 0
    num_tokens: int = 0
    num_cached: int = 0
    metrics: RequestMetrics | None = None  # final once it has ended


@dataclass(slots=True)
class Choices:
    """All choices of a request, and the tokens that they took."""

    prompts: Sequence[PreparedPrompt]
    params: SamplingParams
    texts: TokenTexts
    keeps_end: bool
    _choices: dict[int, _Choice] = field(default_factory=dict)
    _num_open: int = field(init=False)

    def __post_init__(self) -> None:
        self._num_open = len(self.prompts) * self.params.n

    def push(self, prompt_index: int, delta: TextDelta) -> Piece | None:
        """What is new; None if nothing can be shown yet."""
        index = prompt_index * self.params.n + delta.choice_index
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(self._aligner(self.prompts[prompt_index]))
        choice.num_prompt = delta.num_prompt_tokens
        choice.num_tokens = delta.num_output_tokens
        choice.num_cached = max(choice.num_cached, delta.num_cached_tokens)
        choice.metrics = delta.metrics or choice.metrics
        self._num_open -= delta.finish_reason is not None
        entries = choice.aligner.push(delta) if choice.aligner is not None else None
        is_first = not choice.started
        if not (delta.text or delta.finish_reason or entries):
            return None
        choice.started = True
        return Piece(
            index=index,
            text=delta.text,
            entries=entries,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            is_first=is_first,
        )

    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once, however many choices it has."""
        firsts = [choice for index, choice in self._choices.items() if index % self.params.n == 0]
        read = sum(choice.num_prompt for choice in firsts)
        written = sum(choice.num_tokens for choice in self._choices.values())
        cached = sum(choice.num_cached for choice in firsts)
        return Usage(
            prompt_tokens=read,
            completion_tokens=written,
            total_tokens=read + written,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    def report(self) -> RequestReport | UnsetType:
        """What it all cost, once every choice has ended."""
        if self._num_open:
            return UNSET
        found = [choice.metrics for choice in self._choices.values() if choice.metrics is not None]
        return request_report(merge_metrics(found), self.usage()) if found else UNSET

    def _aligner(self, prompt: PreparedPrompt) -> LogprobAligner | None:
        if self.params.logprobs is None:
            return None
        return LogprobAligner(
            self.texts.detokenizer(after=prompt.token_ids),
            keeps_end=self.keeps_end,
            shows_end=self.params.include_stop_str_in_output,
        )


def request_report(metrics: RequestMetrics, usage: Usage) -> RequestReport:
    """The times of a request that has ended, in milliseconds."""

    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else round(1e3 * (end - begin), 3)

    latency = between(metrics.arrival, metrics.finished) or 0.0
    return RequestReport(
        latency_ms=latency,
        ttft_ms=between(metrics.arrival, metrics.first_token),
        queue_ms=between(metrics.arrival, metrics.started),
        prefill_ms=between(metrics.started, metrics.first_token),
        decode_ms=between(metrics.first_token, metrics.last_token),
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        tokens_per_second=round(1e3 * usage.completion_tokens / latency, 2) if latency else 0.0,
        preemptions=metrics.num_preemptions,
        target_forwards=metrics.num_forwards,
        drafts_proposed=metrics.num_drafts,
        drafts_accepted=metrics.num_drafts_accepted,
    )


def joined(parts: Sequence[Any], name: str) -> list[Any]:
    """The lists of one field of several structs as one list."""
    return [value for part in parts for value in getattr(part, name)]
