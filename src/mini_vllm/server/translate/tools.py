"""Tools of a chat request → what the model is told, what it is held to, how its answer is read. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import ChatRequest, ToolDefinition
from mini_vllm.text.tools import ToolFormat, ToolParser
from mini_vllm.types import SamplingParams, StructuredOutputsParams

MAX_TOOLS = 128
MAX_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, none of them perhaps.

    The model is told about `offered`. With tool_choice required or a name its answer is calls and nothing else, with
    arguments that fit; with auto it is free to call, and held to `response_format` when it does not.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    at_most: int | None = None
    tool_format: ToolFormat | None = None

    def parser(self) -> ToolParser | None:
        """A fresh one for one answer; None if there cannot be calls."""
        if self.tool_format is None or not self.offered:
            return None
        return self.tool_format.read([tool["function"]["name"] for tool in self.offered])

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """The parameters with what the tools add to them."""
        wanted = params.structured_outputs
        if self.tool_format is None or not self.offered or (wanted is None and not self.must_call):
            return params
        calls = self.tool_format.force(self.offered, at_most=self.at_most)
        if not self.must_call:
            assert wanted is not None
            calls = replace(calls, answer=_answer_schema(wanted), answer_is_strict=wanted.strict)
        return replace(params, structured_outputs=StructuredOutputsParams(calls=calls, source="tools"))


def read_tools(request: ChatRequest, tool_format: ToolFormat) -> ToolUse:
    """What a request's tools, tool_choice and parallel_tool_calls come to."""
    offered, choice = request.tools or [], request.tool_choice or "auto"
    _check_tools(offered)
    if not offered:
        if choice not in ("none", "auto"):
            raise InvalidParameterError("tool_choice asks for a tool, but there are no tools", param="tool_choice")
        return ToolUse()
    if choice == "none":
        return ToolUse()
    at_most = 1 if request.parallel_tool_calls is False else None
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            raise InvalidParameterError(
                f"tool_choice is {choice!r:.50}; it must be none, auto, required, or name a function",
                param="tool_choice",
            )
        return ToolUse(_plain(offered), choice == "required", at_most, tool_format)
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode, names = _allowed(allowed if isinstance(allowed, Mapping) else choice)
        return ToolUse(_plain([_named(offered, name) for name in names]), mode == "required", at_most, tool_format)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    return ToolUse(_plain([_named(offered, name)]), True, 1, tool_format)


def _check_tools(tools: Sequence[ToolDefinition]) -> None:
    if len(tools) > MAX_TOOLS:
        raise InvalidParameterError(f"{len(tools)} tools are given; at most {MAX_TOOLS} are allowed", param="tools")
    names = set[str]()
    for index, tool in enumerate(tools):
        where, name = f"tools[{index}]", tool.function.name
        if tool.type != "function":
            raise InvalidParameterError(
                f"{where}.type is {tool.type!r:.50}; it must be function", param=f"{where}.type"
            )
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidParameterError(
                f"{where}.function.name has {len(name)} characters; it must have 1 to {MAX_NAME}",
                param=f"{where}.function.name",
            )
        if name in names:
            raise InvalidParameterError(
                f"{where}.function.name is {name!r}, like another tool's; give each its own", param="tools"
            )
        names.add(name)


def _plain(tools: Sequence[ToolDefinition]) -> tuple[dict[str, Any], ...]:
    """As templates want them: without the fields that are null, and always with parameters."""
    plain: list[dict[str, Any]] = msgspec.to_builtins(tools)
    for tool in plain:
        function = {name: value for name, value in tool["function"].items() if value is not None}
        tool["function"] = {"description": "", **function}
        tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    return tuple(plain)


def _named(tools: Sequence[ToolDefinition], name: Any) -> ToolDefinition:
    for tool in tools:
        if tool.function.name == name:
            return tool
    known = ", ".join(tool.function.name for tool in tools)
    raise InvalidParameterError(
        f"tool_choice names {name!r:.100}, which is none of the tools: {known:.300}", param="tool_choice"
    )


def _allowed(choice: Mapping[str, Any]) -> tuple[str, list[Any]]:
    mode, listed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidParameterError(
            "tool_choice allowed_tools needs a mode (auto or required) and a list of tools", param="tool_choice"
        )
    functions = [entry.get("function") if isinstance(entry, Mapping) else None for entry in listed]
    return mode, [function.get("name") if isinstance(function, Mapping) else None for function in functions]


def _answer_schema(wanted: StructuredOutputsParams) -> str:
    if isinstance(wanted.json, str):
        return wanted.json
    if wanted.json_object:
        return '{"type":"object"}'
    raise InvalidParameterError(
        "regex, choice and grammar leave no room for tool calls; use a JSON schema, or tool_choice none", param="tools"
    )
