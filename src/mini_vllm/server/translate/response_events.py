"""Chat chunks → the events and the object of `/v1/responses`. Pure but for ids."""

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from mini_vllm.server.errors import error_body
from mini_vllm.server.protocol.chat import ChatChunk
from mini_vllm.server.protocol.common import RequestReport, Usage
from mini_vllm.server.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ResponseFailure,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
)
from mini_vllm.server.translate.answer import Head
from mini_vllm.server.translate.blocks import Added, Block, BlockEvent, Blocks, Closed, Opened

ResponseEvent = dict[str, Any]  # its "type" is the event's name
_PREFIXES = {"thought": "rs", "text": "msg", "call": "fc"}


class ResponseWriter:
    """One response. Feed it every chunk; `response` is the object as of then."""

    def __init__(self, head: Head, request: ResponsesRequest) -> None:
        self.head = head
        self.content = Blocks()
        self._request = request
        self._ids: dict[int, str] = {}  # by block
        self._num_events = 0
        self._usage: Usage | None = None
        self._report: RequestReport | msgspec.UnsetType = msgspec.UNSET

    def start(self) -> list[ResponseEvent]:
        """The first two events."""
        response = self.response("in_progress")
        return self._numbered({"type": f"response.{name}", "response": response} for name in ("created", "in_progress"))

    def push(self, chunk: ChatChunk) -> list[ResponseEvent]:
        """The events of a chunk."""
        self._report = chunk.mini_vllm or self._report
        return self._events(self.content.push(chunk))

    def finish(self, usage: Usage) -> list[ResponseEvent]:
        """The last ones."""
        events = self._events(self.content.finish(at_least_one=True))
        self._usage = usage
        status = self.status
        return events + self._numbered([{"type": f"response.{status}", "response": self.response(status)}])

    def fail(self, error: BaseException) -> list[ResponseEvent]:
        """The last one, if something went wrong on the way."""
        detail = error_body(error).error
        failure = ResponseFailure(code=detail.code or detail.type, message=detail.message)
        return self._numbered([{"type": "response.failed", "response": self.response("failed", failure)}])

    @property
    def status(self) -> str:
        """How the answer has ended."""
        return "incomplete" if self.content.finish_reason == "length" else "completed"

    def response(self, status: str, error: ResponseFailure | None = None) -> ResponseObject:
        """The object."""
        request, head = self._request, self.head
        is_cut = status == "incomplete"
        blocks = self.content.blocks
        return ResponseObject(
            id=head.id,
            created_at=head.created,
            status=status,
            model=head.model,
            output=[self._item(block, status if block is blocks[-1] else "completed") for block in blocks],
            error=error,
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            previous_response_id=request.previous_response_id,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            temperature=request.temperature,
            top_p=request.top_p,
            text={"format": (request.text.format if request.text is not None else None) or {"type": "text"}},
            metadata=request.metadata or {},
            store=request.store is not False,
            usage=None if self._usage is None else _usage(self._usage),
            mini_vllm=self._report,
        )

    def _events(self, blocks: Iterable[BlockEvent]) -> list[ResponseEvent]:
        return self._numbered(event for block in blocks for event in self._of(block))

    def _of(self, event: BlockEvent) -> list[ResponseEvent]:
        match event:
            case Opened(block):
                return self._opened(block)
            case Added(block, text, logprobs):
                place = self._place(block)
                if block.kind == "call":
                    return [{"type": "response.function_call_arguments.delta", **place, "delta": text}]
                if block.kind == "thought":
                    return [{"type": "response.reasoning_text.delta", **place, "content_index": 0, "delta": text}]
                return [
                    {
                        "type": "response.output_text.delta",
                        **place,
                        "content_index": 0,
                        "delta": text,
                        "logprobs": logprobs,
                    }
                ]
            case Closed(block):
                return self._closed(block)

    def _opened(self, block: Block) -> list[ResponseEvent]:
        self._ids[block.index] = f"{_PREFIXES[block.kind]}_{secrets.token_hex(12)}"
        block = Block(block.index, block.kind, block.call_id, block.name)  # as it was then: it may have grown since
        item = self._item(block, "in_progress")
        events: list[ResponseEvent] = [
            {"type": "response.output_item.added", "output_index": block.index, "item": _without_content(item)}
        ]
        if block.kind != "call":
            events.append({"type": "response.content_part.added", **self._place(block), **_part(block, text="")})
        return events

    def _closed(self, block: Block) -> list[ResponseEvent]:
        place = self._place(block)
        events: list[ResponseEvent]
        if block.kind == "call":
            events = [
                {
                    "type": "response.function_call_arguments.done",
                    **place,
                    "name": block.name,
                    "arguments": block.text,
                }
            ]
        else:
            name = "output_text" if block.kind == "text" else "reasoning_text"
            done = {"type": f"response.{name}.done", **place, "content_index": 0, "text": block.text}
            if block.kind == "text":
                done["logprobs"] = block.logprobs
            events = [done, {"type": "response.content_part.done", **place, **_part(block, text=block.text)}]
        item = self._item(block, self.status if block is self.content.blocks[-1] else "completed")
        return [*events, {"type": "response.output_item.done", "output_index": block.index, "item": item}]

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._ids[block.index], "output_index": block.index}

    def _item(self, block: Block, status: str) -> OutputItem:
        status = "incomplete" if status == "failed" else status
        if block.index not in self._ids:
            self._ids[block.index] = f"{_PREFIXES[block.kind]}_{secrets.token_hex(12)}"
        item_id = self._ids[block.index]
        match block.kind:
            case "call":
                return OutputCall(
                    id=item_id, call_id=block.call_id, name=block.name, arguments=block.text, status=status
                )
            case "thought":
                return OutputReasoning(id=item_id, content=[ReasoningText(text=block.text)], status=status)
            case _:
                content = OutputText(text=block.text, logprobs=block.logprobs)
                return OutputMessage(id=item_id, content=[content], status=status)

    def _numbered(self, events: Iterable[ResponseEvent]) -> list[ResponseEvent]:
        numbered = []
        for event in events:
            numbered.append({"type": event["type"], "sequence_number": self._num_events, **event})
            self._num_events += 1
        return numbered


def _without_content(item: OutputItem) -> OutputItem:
    """As it begins."""
    return item if isinstance(item, OutputCall) else msgspec.structs.replace(item, content=[])


def _part(block: Block, *, text: str) -> dict[str, Any]:
    part = OutputText(text=text, logprobs=block.logprobs) if block.kind == "text" else ReasoningText(text=text)
    return {"content_index": 0, "part": part}


def _usage(usage: Usage) -> ResponsesUsage:
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
    )
