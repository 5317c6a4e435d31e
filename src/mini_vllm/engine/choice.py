"""The text of one choice, from its tokens, the same whether it is streamed or not.

A state machine over token deltas: it must not know who runs the engine, only say when the engine may stop.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from mini_vllm.text import Detokenizer, StopStrings
from mini_vllm.text.detokenizer import TokenBytes
from mini_vllm.types import FinishReason, Request, RequestMetrics, TextDelta, TokenDelta


class Vocabulary(TokenBytes, Protocol):
    """What the front end asks of a tokenizer; `text.Tokenizer` has it."""

    @property
    def vocab_size(self) -> int:
        """Highest token id + 1; a model may have more rows."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the model has one."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """What the tokenizer's own files call the end."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""

    def piece(self, token_id: int) -> str:
        """The vocabulary's own writing of a token."""

    def id_of(self, piece: str) -> int | None:
        """The id of a piece or special token."""


class ChoiceText:
    """Detokenises one choice, cuts it at a stop string and says how it ended.

    A stop string counts if a token after the first min_tokens completes it; that token is the last that counts, and
    what the engine made beyond it is dropped. The id of a stop or EOS token is reported, its text is not (unless the
    parameters include it).
    """

    def __init__(self, request: Request, tokenizer: Vocabulary, *, stop_texts: Mapping[int, str] | None = None) -> None:
        params = request.params
        self._request = request
        self._stop_texts = stop_texts or {}
        self._include = params.include_stop_str_in_output
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            keep_leading_space=any(token_id not in tokenizer.special_ids for token_id in request.prompt_token_ids),
        )
        self._stops = StopStrings(params.stop, include=self._include) if params.stop else None
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._metrics: RequestMetrics | None = None  # as of the first token
        self._matched: str | None = None
        self.finished = False
        self.must_abort = False  # the text is complete, but the engine does not know it yet

    @property
    def may_end(self) -> bool:
        """Whether its text may end it before the engine does, so that it must read every token as it comes."""
        return self._stops is not None

    def push(self, delta: TokenDelta) -> TextDelta | None:
        """The text of new tokens; None once the choice has ended."""
        if self.finished:
            return None
        self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        self._metrics = self._metrics or delta.metrics
        shown = delta.token_ids[:-1] if delta.stop_token_id is not None else delta.token_ids
        text, num_read = self._read(shown)
        if self._matched is not None:
            delta = structs.replace(
                delta, token_ids=delta.token_ids[:num_read], logprobs=delta.logprobs[:num_read], stop_token_id=None
            )
        elif delta.finish_reason is not None:
            text += self._end(delta)
        self._num_output_tokens += len(delta.token_ids) - num_read
        return self._text_delta(delta, text)

    def _read(self, token_ids: tuple[int, ...]) -> tuple[str, int]:
        """Text of the tokens up to a match, and how many were read; the count of output tokens moves along."""
        if self._stops is None:
            self._num_output_tokens += len(token_ids)
            return self._detokenizer.push(token_ids), len(token_ids)
        pieces = []
        for num_read, token_id in enumerate(token_ids, 1):
            self._num_output_tokens += 1
            pieces.append(self._search(self._detokenizer.push((token_id,))))
            if self._matched is not None:
                return "".join(pieces), num_read
        return "".join(pieces), len(token_ids)

    def _search(self, text: str) -> str:
        """The text to show of what the newest token completed."""
        if self._stops is None:
            return text
        active = self._num_output_tokens > self._request.params.min_tokens
        shown, self._matched = self._stops.push(text, active=active)
        return shown

    def _end(self, delta: TokenDelta) -> str:
        """What was held back, now that nothing follows."""
        text = ""
        if delta.stop_token_id is not None and self._include and delta.stop_token_id not in self._stop_texts:
            text = self._search(self._detokenizer.push((delta.stop_token_id,)))
        if self._matched is None:
            text += self._search(self._detokenizer.flush())
        if self._matched is None and self._stops is not None:
            text += self._stops.flush()
        if self._matched is None and self._include and delta.stop_token_id is not None:
            text += self._stop_texts.get(delta.stop_token_id, "")
        return text

    def _text_delta(self, delta: TokenDelta, text: str) -> TextDelta:
        finish_reason: FinishReason | None = delta.finish_reason
        stop_reason: str | int | None = None
        if self._matched is not None:
            self.must_abort = finish_reason is None
            finish_reason, stop_reason = "stop", self._matched
            delta = structs.replace(delta, metrics=self._metrics_at_stop(delta))
        elif delta.stop_token_id is not None:
            stop_reason = self._stop_reason(delta.stop_token_id)
        self.finished = finish_reason is not None
        return TextDelta(
            request_id=self._request.parent_id,
            choice_index=self._request.choice_index,
            text=text,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            prompt_logprobs=delta.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
            error=delta.error,
            refused=delta.refused,
            metrics=delta.metrics,
        )

    def _metrics_at_stop(self, delta: TokenDelta) -> RequestMetrics | None:
        """A stop string ends the choice with this delta, whatever the engine goes on to make."""
        if self._metrics is None:
            return None
        return replace(self._metrics, last_token=delta.time, finished=delta.time, num_preemptions=delta.num_preemptions)

    def _stop_reason(self, token_id: int) -> str | int | None:
        """The stop string or id that the user gave; None for EOS."""
        if token_id in self._stop_texts:
            return self._stop_texts[token_id]
        return token_id if token_id in self._request.params.stop_token_ids else None
