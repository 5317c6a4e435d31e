"""What is new of a choice's text → the deltas that clients get: content, thoughts, tool calls. Pure but for ids."""

import secrets
from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET

from mini_vllm.server.protocol.chat import (
    AssistantMessage,
    Delta,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from mini_vllm.server.translate.answer import Piece
from mini_vllm.text.router import OutputRouter
from mini_vllm.text.tools import CallArguments, CallStart, Content, Event, Reasoning


def new_call_id() -> str:
    """An id that no other call has."""
    return "call_" + secrets.token_hex(12)


class DeltaWriter:
    """One choice. Whole answers are made of the same deltas as streams, so both say the same."""

    def __init__(self, router: OutputRouter | None, *, call_id: Callable[[], str] = new_call_id) -> None:
        self._router = router
        self._call_id = call_id

    @property
    def opening(self) -> Delta:
        """The first delta; its content is null where tool calls may be all that follows."""
        may_call = self._router is not None and self._router.reads_calls
        return Delta(role="assistant", content=None if may_call else "")

    def push(self, piece: Piece) -> tuple[list[Delta], str | None]:
        """The deltas of what is new, and how the choice has ended, if it has."""
        if self._router is None:
            return [Delta(content=piece.text)], piece.finish_reason
        events = self._router.push(piece.text)
        finish_reason = piece.finish_reason
        if finish_reason is not None:
            events += self._router.finish()
            if finish_reason == "stop" and self._router.called:
                finish_reason = "tool_calls"
        return [self._delta(event) for event in _joined(events)], finish_reason

    def _delta(self, event: Event) -> Delta:
        match event:
            case Content(text):
                return Delta(content=text)
            case Reasoning(text):
                return Delta(reasoning_content=text)
            case CallStart(index, name):
                function = FunctionDelta(name=name, arguments="")
                return Delta(
                    tool_calls=[ToolCallDelta(index=index, id=self._call_id(), type="function", function=function)]
                )
            case CallArguments(index, text):
                return Delta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=text))])
        raise AssertionError(event)


def message(deltas: Iterable[Delta]) -> AssistantMessage:
    """All deltas of a choice as one message."""
    content, reasoning = "", ""
    calls: list[tuple[str, str, list[str]]] = []
    for delta in deltas:
        content += delta.content or ""
        reasoning += delta.reasoning_content or ""
        for call in delta.tool_calls or ():
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                calls.append((call.id, call.function.name, []))
            calls[call.index][2].append(call.function.arguments)
    return AssistantMessage(
        content=None if calls and not content else content,
        reasoning_content=reasoning or UNSET,
        tool_calls=[
            ToolCall(id=call_id, function=FunctionCall(name=name, arguments="".join(arguments)))
            for call_id, name, arguments in calls
        ]
        or UNSET,
    )


def _joined(events: Sequence[Event]) -> list[Event]:
    """Without ends, and with neighbours of one kind in one."""
    joined: list[Event] = []
    for event in events:
        match joined[-1] if joined else None, event:
            case Content(before), Content(text):
                joined[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                joined[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(_, text):
                joined[-1] = CallArguments(index, before + text)
            case _, Content() | Reasoning() | CallStart() | CallArguments():
                joined.append(event)
    return joined
