"""Chat chunks → the events and the object of `/v1/messages`. Pure."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from mini_vllm.server.errors import error_body, status_of
from mini_vllm.server.protocol.chat import ChatChunk
from mini_vllm.server.protocol.common import RequestReport, Usage
from mini_vllm.server.protocol.messages import (
    ContentBlock,
    Message,
    MessagesError,
    MessagesErrorDetail,
    MessagesUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from mini_vllm.server.translate.answer import Head
from mini_vllm.server.translate.blocks import Added, Block, BlockEvent, Blocks, Closed, Opened

MessageEvent = dict[str, Any]  # its "type" is the event's name
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_DELTAS = {
    "text": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessageWriter:
    """One message. Feed it every chunk; `message` is the object once it has ended."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._blocks = Blocks()
        self._report: RequestReport | msgspec.UnsetType = msgspec.UNSET

    def start(self, usage: Usage) -> list[MessageEvent]:
        """The first event."""
        head = self.head
        message = Message(id=head.id, model=head.model, content=[], usage=_usage(usage))
        return [{"type": "message_start", "message": message}]

    def push(self, chunk: ChatChunk) -> list[MessageEvent]:
        """The events of a chunk."""
        self._report = chunk.mini_vllm or self._report
        return self._events(self._blocks.push(chunk))

    def finish(self, usage: Usage) -> list[MessageEvent]:
        """The last ones."""
        reason, sequence = self._ending()
        return [
            *self._events(self._blocks.finish()),
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": _usage(usage),
            },
            {"type": "message_stop"},
        ]

    def message(self, usage: Usage) -> Message:
        """The whole answer."""
        reason, sequence = self._ending()
        return Message(
            id=self.head.id,
            model=self.head.model,
            content=[_content(block) for block in self._blocks.blocks],
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(usage),
            mini_vllm=self._report,
        )

    def _events(self, events: Iterable[BlockEvent]) -> list[MessageEvent]:
        return [_event(event) for event in events]

    def _ending(self) -> tuple[StopReason, str | None]:
        blocks = self._blocks
        if blocks.finish_reason == "length":
            return "max_tokens", None
        if blocks.finish_reason == "tool_calls":
            return "tool_use", None
        if isinstance(blocks.stop_reason, str):
            return "stop_sequence", blocks.stop_reason
        return "end_turn", None


def message_error(error: BaseException) -> MessagesError:
    """A failure in the words of this API."""
    status = status_of(error)
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return MessagesError(error=MessagesErrorDetail(type=kind, message=error_body(error).error.message))


def _event(event: BlockEvent) -> MessageEvent:
    match event:
        case Opened(block):
            opening = ToolUseBlock(id=block.call_id, name=block.name, input={}) if block.kind == "call" else None
            empty = opening or _content(Block(block.index, block.kind))
            return {"type": "content_block_start", "index": block.index, "content_block": empty}
        case Added(block, text):
            kind, name = _DELTAS[block.kind]
            return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, name: text}}
        case Closed(block):
            return {"type": "content_block_stop", "index": block.index}


def _content(block: Block) -> ContentBlock:
    match block.kind:
        case "text":
            return TextBlock(text=block.text)
        case "thought":
            return ThinkingBlock(thinking=block.text)
        case _:
            return ToolUseBlock(id=block.call_id, name=block.name, input=_arguments(block.text))


def _arguments(text: str) -> dict[str, Any]:
    """A call that was cut has arguments that cannot be read: then there are none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _usage(usage: Usage) -> MessagesUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )
