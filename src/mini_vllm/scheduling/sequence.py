"""The control plane's one mutable thing per request. It never leaves the scheduling room.

This module must not know policies, plans of other sequences or the inside of the KV cache.
"""

from msgspec.structs import replace

from mini_vllm.kvcache import BlockTable
from mini_vllm.types import (
    Chunk,
    FinishReason,
    Outputs,
    Request,
    RequestMetrics,
    SequenceOutput,
    TokenDelta,
    TokenLogprobs,
)

Rank = tuple[float, int]  # the lower goes first; the int is the sequence's id


class Sequence:
    """A request on its way: known tokens, and how many of them have been computed.

    | positions                          | state                                   |
    | ---------------------------------- | --------------------------------------- |
    | [0, num_computed)                  | K and V are in the cache                |
    | [num_computed, len(token_ids))     | known, owed to the executor             |
    | after them                         | `drafts`: guesses for the next step     |
    """

    __slots__ = (
        "drafts",
        "finish_reason",
        "first_token",
        "is_known",
        "is_running",
        "is_score_only",
        "last_accepted",
        "last_token",
        "max_len",
        "num_cached",
        "num_computed",
        "num_drafts",
        "num_drafts_accepted",
        "num_forwards",
        "num_preemptions",
        "num_prompt",
        "prepaid",
        "prompt_logprobs",
        "rank",
        "request",
        "scores_prompt",
        "seq_id",
        "started",
        "table",
        "token_ids",
    )

    def __init__(self, request: Request, *, seq_id: int, max_len: int, class_seconds: float = 10.0) -> None:
        """`class_seconds`: how much later an arrival may be to make up for one class of priority."""
        self.request = request
        self.seq_id = seq_id  # ascending in order of arrival
        # Among those that run: the lowest is served first, the highest is preempted first. It never changes, so the
        # lowest of all always gets on, and everybody is the lowest at last.
        self.rank: Rank = (request.priority * class_seconds + request.arrival, seq_id)
        self.num_prompt = len(request.prompt_token_ids)
        self.is_score_only = request.max_tokens == 0  # it ends with its prompt
        self.scores_prompt = request.params.prompt_logprobs is not None
        self.max_len = max_len  # prompt and output tokens; reaching it ends the sequence
        self.token_ids = list(request.prompt_token_ids)  # of prompt and output; only ever appended to
        self.table: BlockTable
        self.num_computed = 0
        self.num_cached: int | None = None  # prompt tokens found in the cache when first started
        self.num_preemptions = 0
        self.prepaid = 0  # tokens that its queue has charged for in advance
        self.drafts: tuple[int, ...] = ()
        self.num_forwards = self.num_drafts = self.num_drafts_accepted = 0  # of steps that sampled
        self.last_accepted = 0  # guesses of the last step that had any
        self.prompt_logprobs: list[TokenLogprobs] = []  # of prompt positions 1 …; survives preemption
        self.is_running = False  # whether it has a row and an open table; else it waits
        self.is_known = False  # whether the executor has its Admission
        self.finish_reason: FinishReason | None = None
        self.started: float | None = None  # when it was first in a step; this and the next two on the engine's clock
        self.first_token: float | None = None
        self.last_token: float | None = None

    @property
    def max_kv_len(self) -> int:
        """Most tokens whose K and V are ever needed: the last output token is never computed."""
        return max(self.num_prompt, self.max_len - 1)

    @property
    def num_owed(self) -> int:
        """Known tokens that are not computed yet; at least 1 while it lives."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_remaining(self) -> int:
        """Tokens that it may still write."""
        return self.max_len - len(self.token_ids)

    @property
    def num_unscored(self) -> int:
        """Prompt positions whose log-probabilities were asked for and are not known yet."""
        return self.num_prompt - 1 - len(self.prompt_logprobs) if self.scores_prompt else 0

    @property
    def num_reusable(self) -> int:
        """Tokens that may come from the prefix cache: never the last, never one that must still be scored or pooled."""
        if self.request.pooling == "mean":
            return 0
        return len(self.prompt_logprobs) if self.num_unscored else len(self.token_ids) - 1

    def chunk(self, num_tokens: int, num_drafts: int, block_ids: tuple[int, ...]) -> Chunk:
        """The next `num_tokens` owed tokens, and after the last known one `num_drafts` guesses."""
        start, end = self.num_computed, self.num_computed + num_tokens
        token_ids = tuple(self.token_ids[start:end]) if num_tokens > 1 else (self.token_ids[start],)
        if num_drafts:
            token_ids += self.drafts[:num_drafts]
        samples = end == len(self.token_ids) and not self.is_score_only
        outputs = Outputs.LAST if samples else Outputs.NONE
        if self.scores_prompt and self.num_unscored and min(end, self.num_prompt - 1) > len(self.prompt_logprobs):
            outputs = Outputs.ALL
        elif self.request.pooling == "mean" or (self.request.pooling == "last" and end == self.num_prompt):
            outputs = Outputs.HIDDEN
        return Chunk(self.seq_id, start, token_ids, num_drafts, block_ids, outputs, samples)

    def advance(self, chunk: Chunk, output: SequenceOutput | None, *, now: float = 0.0) -> TokenDelta | None:
        """Take in what a chunk of this sequence has produced; sets finish_reason. None if there is nothing to tell."""
        if output is not None and output.prompt_logprobs:
            self._keep_prompt_logprobs(chunk.start, output)
        if not chunk.samples:
            self.num_computed = chunk.start + len(chunk.token_ids)
            if not self.is_score_only or self.num_owed:
                return None
            self.finish_reason = "length"
            delta = self._delta((), (), None, first=True, now=now)
            return delta if output is None or not output.hidden else replace(delta, embedding=output.hidden)
        assert output is not None and output.token_ids, f"sequence {self.seq_id} was to be sampled and was not"
        num_known = len(self.token_ids)
        stop_token_id = self._append(output.token_ids)
        num_new = len(self.token_ids) - num_known
        self._end_by_grammar(output, num_new)
        self.num_computed = num_known + num_new - 1
        self.num_forwards += 1
        if chunk.num_drafts:
            self.num_drafts += chunk.num_drafts
            self.last_accepted = min(num_new, len(output.token_ids) - 1)
            self.num_drafts_accepted += self.last_accepted
        self.drafts = output.next_drafts
        first = num_known == self.num_prompt
        self.last_token = now
        if first:
            self.first_token = now
        delta = self._delta(output.token_ids[:num_new], output.logprobs[:num_new], stop_token_id, first=first, now=now)
        return replace(delta, error=output.error, refused=True) if self.finish_reason == "error" else delta

    def end(self, reason: FinishReason, *, error: str | None = None, now: float = 0.0) -> TokenDelta:
        """Finish without new tokens."""
        self.finish_reason = reason
        return TokenDelta(
            request_id=self.request.request_id,
            finish_reason=reason,
            num_cached_tokens=self.num_cached or 0,
            error=error,
            time=now,
            num_preemptions=self.num_preemptions,
            metrics=self._metrics(now),
        )

    def _append(self, token_ids: tuple[int, ...]) -> int | None:
        """Append until one of them ends the sequence; the EOS or stop token that did."""
        request, min_len = self.request, self.num_prompt + self.request.params.min_tokens
        for token_id in token_ids:
            may_stop = len(self.token_ids) >= min_len
            self.token_ids.append(token_id)
            if may_stop and (token_id in request.eos_token_ids or token_id in request.stop_token_ids):
                self.finish_reason = "stop"
                return token_id
            if len(self.token_ids) >= self.max_len:
                self.finish_reason = "length"
                return None
        return None

    def _end_by_grammar(self, output: SequenceOutput, num_new: int) -> None:
        """A complete text ends as such even where max_tokens ends it too."""
        if output.error is not None:
            self.finish_reason = "error"
        elif output.complete and num_new == len(output.token_ids):
            self.finish_reason = "stop"

    def _keep_prompt_logprobs(self, start: int, output: SequenceOutput) -> None:
        """Positions start + 1 … of the prompt; those known from before a preemption are not taken twice."""
        if self.num_unscored:
            known = len(self.prompt_logprobs)
            self.prompt_logprobs += output.prompt_logprobs[known - start : self.num_prompt - 1 - start]

    def _delta(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        stop_token_id: int | None,
        *,
        first: bool,
        now: float,
    ) -> TokenDelta:
        return TokenDelta(
            request_id=self.request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=tuple(self.prompt_logprobs) if first and self.prompt_logprobs else (),
            finish_reason=self.finish_reason,
            stop_token_id=stop_token_id,
            num_cached_tokens=self.num_cached or 0,
            time=now,
            num_preemptions=self.num_preemptions,
            metrics=self._metrics(now) if first or self.finish_reason is not None else None,
        )

    def _metrics(self, now: float) -> RequestMetrics:
        return RequestMetrics(
            arrival=self.request.arrival,
            started=self.started,
            first_token=self.first_token,
            last_token=self.last_token,
            finished=None if self.finish_reason is None else now,
            num_preemptions=self.num_preemptions,
            num_forwards=self.num_forwards,
            num_drafts=self.num_drafts,
            num_drafts_accepted=self.num_drafts_accepted,
        )
