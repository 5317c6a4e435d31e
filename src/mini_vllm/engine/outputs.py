"""Collects the text deltas of a request into vLLM's `RequestOutput`.

Must not know how the deltas were made or who waits for the output.
"""

from collections.abc import Collection
from dataclasses import replace

from mini_vllm.types import CompletionOutput, RequestMetrics, RequestOutput, SamplingParams, TextDelta


class OutputCollector:
    """The cumulative output of one user's request: feed it every `TextDelta`, read `snapshot()` or `result()`."""

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        *,
        prompt: str | None,
        prompt_token_ids: list[int],
    ) -> None:
        self._unfinished = params.n
        self._pieces: list[list[str]] = [[] for _ in range(params.n)]
        self._metrics: dict[int, RequestMetrics] = {}  # by choice
        self._wants_prompt_logprobs = params.prompt_logprobs is not None
        self.error: str | None = None  # what the engine said about a choice that ended with finish_reason "error"
        self._output = RequestOutput(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            outputs=[
                CompletionOutput(
                    index=index,
                    logprobs=None if params.logprobs is None else [],
                    cumulative_logprob=None if params.logprobs is None else 0.0,
                )
                for index in range(params.n)
            ],
        )

    def add(self, delta: TextDelta) -> None:
        """Append one delta to its choice."""
        choice = self._output.outputs[delta.choice_index]
        self._pieces[delta.choice_index].append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if choice.logprobs is not None:
            choice.logprobs.extend(delta.logprobs)
            choice.cumulative_logprob = sum((entry.logprob for entry in delta.logprobs), choice.cumulative_logprob or 0)
        if self._wants_prompt_logprobs and len(delta.prompt_logprobs) == len(self._output.prompt_token_ids) - 1:
            self._output.prompt_logprobs = [None, *delta.prompt_logprobs]
        self._output.num_cached_tokens = max(self._output.num_cached_tokens, delta.num_cached_tokens)
        if delta.metrics is not None:
            self._metrics[delta.choice_index] = delta.metrics
            self._output.metrics = merge_metrics(self._metrics.values())
        if delta.finish_reason is not None:
            self._finish(choice, delta)

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    def snapshot(self) -> RequestOutput:
        """The output so far, as a value that later deltas do not change."""
        self._join()
        return replace(
            self._output,
            outputs=[
                replace(
                    choice,
                    token_ids=list(choice.token_ids),
                    logprobs=None if choice.logprobs is None else list(choice.logprobs),
                )
                for choice in self._output.outputs
            ],
        )

    def result(self) -> RequestOutput:
        """The output itself, to be called when it is finished."""
        self._join()
        return self._output

    def _join(self) -> None:
        for choice, pieces in zip(self._output.outputs, self._pieces):
            pieces[:] = ["".join(pieces)]
            choice.text = pieces[0]

    def _finish(self, choice: CompletionOutput, delta: TextDelta) -> None:
        choice.finish_reason = delta.finish_reason
        choice.stop_reason = delta.stop_reason
        self.error = self.error or delta.error
        self._unfinished -= 1
        if self._unfinished == 0:
            self._output.finished = True


def merge_metrics(parts: Collection[RequestMetrics]) -> RequestMetrics:
    """Of several sequences, at least one: from the first arrival to the last end, which is open while one runs."""
    ends = [part.finished for part in parts]
    return RequestMetrics(
        arrival=min(part.arrival for part in parts),
        started=min((part.started for part in parts if part.started is not None), default=None),
        first_token=min((part.first_token for part in parts if part.first_token is not None), default=None),
        last_token=max((part.last_token for part in parts if part.last_token is not None), default=None),
        finished=None if None in ends else max(end for end in ends if end is not None),
        num_preemptions=sum(part.num_preemptions for part in parts),
        num_forwards=sum(part.num_forwards for part in parts),
        num_drafts=sum(part.num_drafts for part in parts),
        num_drafts_accepted=sum(part.num_drafts_accepted for part in parts),
    )
