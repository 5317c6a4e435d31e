"""Text deltas → the events of `/generate` and `/ws/generate`. Pure."""

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.generate import DoneEvent, Event, GenerateRequest, StartEvent, TokenEvent
from mini_vllm.server.translate.answer import Choices, PreparedPrompt, TokenTexts
from mini_vllm.server.translate.sampling import sampling_params
from mini_vllm.types import SamplingParams, TextDelta

DEFAULTS = SamplingParams(max_tokens=200, temperature=0.8, top_p=0.9)


def generate_params(request: GenerateRequest) -> SamplingParams:
    """Sampling parameters; those of the model's own configuration do not count here."""
    if (request.n or 1) != 1:
        raise InvalidParameterError(f"n is {request.n}; this endpoint gives one answer, so leave it out", param="n")
    name = "max_tokens" if request.max_new_tokens is None else "max_new_tokens"
    max_tokens = getattr(request, name)
    if max_tokens is None:
        max_tokens = DEFAULTS.max_tokens
    if max_tokens < 1:
        raise InvalidParameterError(f"{name} is {max_tokens}; it must be at least 1", param=name)
    return sampling_params(request, DEFAULTS, max_tokens=max_tokens)


@dataclass(slots=True)
class GenerateAnswer:
    """The events of one request. `shown_id` goes into every event, where several requests share a connection."""

    request_id: str
    prompt: PreparedPrompt
    params: SamplingParams
    texts: TokenTexts
    shown_id: str | UnsetType = UNSET
    _choices: Choices = field(init=False)

    def __post_init__(self) -> None:
        self._choices = Choices([self.prompt], self.params, self.texts, keeps_end=False)

    def start(self) -> StartEvent:
        """The first."""
        return StartEvent(request_id=self.request_id if self.shown_id is UNSET else self.shown_id)

    def events(self, delta: TextDelta) -> list[Event]:
        """New text, and the end if it is one."""
        piece = self._choices.push(0, delta)
        if piece is None:
            return []
        found: list[Event] = [TokenEvent(request_id=self.shown_id, text=piece.text)] if piece.text else []
        return found if piece.finish_reason is None else [*found, self.done(piece.finish_reason)]

    def done(self, finish_reason: str) -> DoneEvent:
        """The last, with the tokens of what was pushed."""
        return DoneEvent(
            request_id=self.shown_id,
            finish_reason=finish_reason,
            usage=self._choices.usage(),
            mini_vllm=self._choices.report(),
        )
