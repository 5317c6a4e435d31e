"""Text deltas → the answer of `/v1/completions`, whole or in chunks. Pure."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from mini_vllm.server.protocol.completions import (
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionResponse,
)
from mini_vllm.server.translate.answer import Choices, Head, Piece, PreparedPrompt, TokenTexts, joined
from mini_vllm.server.translate.logprobs import completion_logprobs, prompt_entries
from mini_vllm.types import SamplingParams, TextDelta, TokenLogprobs


class CompletionAnswer:
    """One answer. `push` gives the choice of a chunk; `response` is all of them joined."""

    def __init__(
        self,
        head: Head,
        prompts: Sequence[PreparedPrompt],
        params: SamplingParams,
        *,
        texts: TokenTexts,
        echo: bool,
    ) -> None:
        self.head = head
        self._params = params
        self._texts = texts
        self._choices = Choices(prompts, params, texts, keeps_end=True)
        self._echoes = [_Echo(prompt, params, texts) for prompt in prompts] if echo else None
        self._parts: defaultdict[int, list[CompletionChoice]] = defaultdict(list)

    def add(self, prompt_index: int, delta: TextDelta) -> None:
        """Keep a delta for `response`."""
        for choice in self.push(prompt_index, delta):
            self._parts[choice.index].append(choice)

    def push(self, prompt_index: int, delta: TextDelta) -> list[CompletionChoice]:
        """What a delta adds: mostly one part of a choice; none while nothing can be shown.

        The log-probabilities of an echoed prompt come with its choice 0; the other choices wait for them.
        """
        echo = self._echoes[prompt_index] if self._echoes is not None else None
        if echo is None or not echo.waits:
            return self._part(prompt_index, delta, echo)
        if delta.choice_index != 0:
            echo.waiting.append(delta)
            return []
        echo.take(delta.prompt_logprobs)
        return [part for each in (delta, *echo.waiting) for part in self._part(prompt_index, each, echo)]

    def chunks(self, prompt_index: int, delta: TextDelta, *, with_usage: bool = False) -> list[CompletionChunk]:
        """The events for a delta."""
        return [self._chunk([choice], with_usage=with_usage) for choice in self.push(prompt_index, delta)]

    def usage_chunk(self) -> CompletionChunk:
        """The last event of a stream that includes usage."""
        return self._chunk([], with_usage=True)

    def response(self) -> CompletionResponse:
        """The whole answer, choices in order."""
        choices = [_join(parts) for _, parts in sorted(self._parts.items())]
        head = self.head
        return CompletionResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self._choices.usage(),
            mini_vllm=self._choices.report(),
        )

    def _chunk(self, choices: list[CompletionChoice], *, with_usage: bool = False) -> CompletionChunk:
        head = self.head
        usage = self._choices.usage() if with_usage else UNSET
        return CompletionChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage,
            mini_vllm=self._choices.report(),
        )

    def _part(self, prompt_index: int, delta: TextDelta, echo: "_Echo | None") -> list[CompletionChoice]:
        piece = self._choices.push(prompt_index, delta)
        if piece is None:
            return []
        part = CompletionChoice(
            index=piece.index,
            text=echo.text + piece.text if echo is not None and piece.is_first else piece.text,
            logprobs=self._logprobs(piece, echo),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )
        return [part]

    def _logprobs(self, piece: Piece, echo: "_Echo | None") -> CompletionLogprobs | None:
        if piece.entries is None:
            return None
        found = completion_logprobs(
            piece.entries,
            count=self._params.logprobs or 0,
            token_text=self._texts.token_text,
            shift=len(echo.text) if echo is not None else 0,
        )
        if echo is None or echo.logprobs is None or not piece.is_first:
            return found
        return _join_logprobs([echo.logprobs, found])


class _Echo:
    """A prompt as the start of each of its choices.

    Its text is the prompt as it came; with logprobs it is the texts of its tokens joined, since offsets count in that.
    """

    def __init__(self, prompt: PreparedPrompt, params: SamplingParams, texts: TokenTexts) -> None:
        self.waits = params.logprobs is not None
        self.waiting: list[TextDelta] = []
        self.logprobs: CompletionLogprobs | None = None
        self._prompt = prompt
        self._texts = texts
        self._count = params.logprobs or 0
        self._text: str | None = None

    def take(self, found: Sequence[TokenLogprobs]) -> None:
        """Log-probabilities of the prompt's tokens from the second on."""
        entries = prompt_entries(self._prompt.token_ids, found, self._texts.detokenizer())
        self.logprobs = completion_logprobs(entries, count=self._count, token_text=self._texts.token_text, shift=0)
        self._text = "".join(self.logprobs.tokens)
        self.waits = False

    @property
    def text(self) -> str:
        """What is echoed."""
        if self._text is None:
            prompt = self._prompt
            self._text = self._texts.decode(prompt.token_ids) if prompt.text is None else prompt.text
        return self._text


def _join(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """The chunks of one choice as one."""
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return CompletionChoice(
        index=parts[0].index,
        text="".join(part.text for part in parts),
        logprobs=_join_logprobs(logprobs) if logprobs else None,
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
    )


def _join_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=joined(parts, "tokens"),
        token_logprobs=joined(parts, "token_logprobs"),
        top_logprobs=joined(parts, "top_logprobs"),
        text_offset=joined(parts, "text_offset"),
    )
