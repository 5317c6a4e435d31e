"""Chat messages to a prompt, with the model's own template.

Jinja is imported at the first rendering. Must not know tokenizers or requests; templated text is later encoded
without adding special tokens, because the template writes them itself.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.errors import ChatTemplateError
from mini_vllm.text.messages import Wishes, prepare_messages
from mini_vllm.text.template_files import template_file
from mini_vllm.text.tools import ToolFormat, choose_format, describe_tools

if TYPE_CHECKING:
    from jinja2 import Template

    from mini_vllm.text.sandbox import TemplateSandbox

_PROBE = "probe text"
_TOOL = "probe_tool"
_HERE = "\ue123here the final message continues\ue123"  # private-use characters: no text contains this
_ASKS_FOR_NULL = re.compile(r"""\bcontent(['"]\])?\s+is\s+none\b""")
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateHolder(Protocol):
    """What `load_chat_template` asks of a tokenizer."""

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Name -> source."""

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """bos_token, eos_token … with their texts."""


def load_chat_template(
    tokenizer: TemplateHolder, *, file: str | Path | None = None, tool_format: str = "auto"
) -> "ChatTemplate":
    """The template of `--chat-template FILE`, else the tokenizer's own; false in a boolean context if there is none.

    A file is compiled at once, so that a mistake in it is an error at the start (`ChatTemplateError`).
    """
    if file is None:
        return ChatTemplate(tokenizer.chat_templates, variables=tokenizer.named_tokens, tool_format=tool_format)
    template = ChatTemplate(template_file(Path(file)), variables=tokenizer.named_tokens, tool_format=tool_format)
    template.check()
    return template


class ChatTemplate:
    """One or several named Jinja templates, rendered in a sandbox.

    Named templates: `tool_use` is taken when tools are given and it exists, otherwise `default`.

    Attributes:
        tool_format: how the model writes tool calls.
        thinks: whether the model may write its thoughts between `<think>` tags first.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        *,
        variables: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        tool_format: str = "auto",
    ) -> None:
        """`variables` are always visible to the template (bos_token, eos_token …); `now` is for strftime_now.

        `tool_format` is one of `text.tools.FORMATS`, or auto: the one that the template is written for.
        """
        self.sources: dict[str, str] = {"default": source} if isinstance(source, str) else dict(source or {})
        self._variables = dict(variables or {})
        self._now = now
        self._sandbox: TemplateSandbox | None = None
        self._compiled: dict[str, Template] = {}
        self._known_wishes: dict[str, Wishes] = {}
        self._knows_tools: dict[str, bool] = {}
        every = "\n".join(map(str, self.sources.values()))
        self.tool_format: ToolFormat = choose_format(every, name=tool_format)
        self.thinks = "<think>" in every

    def __bool__(self) -> bool:
        """Whether there is a template."""
        return bool(self.sources)

    def check(self) -> None:
        """Compile every template (`ChatTemplateError` on a syntax error)."""
        for name in self.sources:
            self._template(name)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for these messages.

        `add_generation_prompt` opens the assistant's turn (default: yes, unless the final message is continued).
        `continue_final_message` ends the prompt right after the text of the final message, whatever the template
        would put behind it. `variables` reach the template as they are (`enable_thinking=False`).

        Raises:
            ChatTemplateError: there is no template, the messages are malformed, or the template refused them.
        """
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "add_generation_prompt and continue_final_message are both true: the first opens a new turn, the "
                "second continues the last one; give one of them",
                param="continue_final_message",
            )
        if taken := _OWN_VARIABLES & variables.keys():
            raise ChatTemplateError(
                f"template variable {sorted(taken)[0]} is set by the request itself; leave it out",
                param="chat_template_kwargs",
            )
        name = self._choose(bool(tools))
        prepared = prepare_messages(messages, self._wishes(name))
        if continue_final_message:
            _mark_end(prepared[-1])
        text = self._run(
            name,
            {
                **variables,
                "messages": prepared,
                "tools": list(tools) if tools else None,
                "documents": list(documents) if documents else None,
                "add_generation_prompt": not continue_final_message and add_generation_prompt is not False,
            },
        )
        return _cut_at_mark(text) if continue_final_message else text

    def explain_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """What to render so that nothing about tools is lost.

        Messages and tools as they are, for a template that knows tools. For one that does not, the tools, calls and
        what came of them are put into the messages in words (`text.tools.prompting`), and no tools are left.
        """
        name = self._choose(bool(tools))
        if not self._needs_words(name, prepare_messages(messages), has_tools=bool(tools)):
            return messages, tools
        return describe_tools(messages, tools or (), self.tool_format), None

    def _choose(self, with_tools: bool) -> str:  # noqa: FBT001
        if with_tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        if not self.sources:
            raise ChatTemplateError(
                "this model has no chat template; give one with --chat-template FILE, or use plain completions",
                param="messages",
                code="no_chat_template",
            )
        raise ChatTemplateError(
            f"this model has no default chat template, only {', '.join(sorted(self.sources))}; give one with "
            "--chat-template FILE",
            param="messages",
        )

    def _template(self, name: str) -> "Template":
        if name not in self._compiled:
            from jinja2 import TemplateSyntaxError

            from mini_vllm.text.sandbox import TemplateSandbox

            if self._sandbox is None:
                self._sandbox = TemplateSandbox(now=self._now)
            try:
                self._compiled[name] = self._sandbox.from_string(self.sources[name])
            except TemplateSyntaxError as error:
                raise ChatTemplateError(
                    f"the chat template is not valid Jinja: {_line(error)} (line {error.lineno})", param="chat_template"
                ) from error
            except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
                raise ChatTemplateError(
                    f"the chat template cannot be compiled: {_line(error)}", param="chat_template"
                ) from error
        return self._compiled[name]

    def _run(self, name: str, variables: Mapping[str, Any]) -> str:
        template = self._template(name)
        assert self._sandbox is not None
        try:
            return self._sandbox.render(template, {**self._variables, **variables})
        except Exception as error:  # a template can fail in any way that Python can
            raise ChatTemplateError(
                f"the chat template refused these messages: {_line(error)}", param="messages"
            ) from error

    def _wishes(self, name: str) -> Wishes:
        """What the template can take. It wants parts if it loses text given as a string and shows it given as parts."""
        if name not in self._known_wishes:
            as_part = [{"type": "text", "text": _PROBE}]
            self._known_wishes[name] = Wishes(
                parts=not self._shows(name, _PROBE) and self._shows(name, as_part),
                null=_ASKS_FOR_NULL.search(self.sources[name]) is not None,
                developer="developer" in self.sources[name],
            )
        return self._known_wishes[name]

    def _needs_words(self, name: str, messages: Sequence[Mapping[str, Any]], *, has_tools: bool) -> bool:
        """Whether the template would leave out tools, or calls and what came of them."""
        if has_tools:
            if name not in self._knows_tools:
                self._knows_tools[name] = self._shows_tools(name)
            return not self._knows_tools[name]
        return "tool_calls" not in self.sources[name] and any("tool_calls" in message for message in messages)

    def _shows_tools(self, name: str) -> bool:
        schema = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
        function = {"name": _TOOL, "description": "x", "parameters": schema}
        content: Any = [{"type": "text", "text": _PROBE}] if self._wishes(name).parts else _PROBE
        return _TOOL in self._try(name, content, tools=[{"type": "function", "function": function}])

    def _shows(self, name: str, content: Any) -> bool:
        return _PROBE in self._try(name, content, tools=None)

    def _try(self, name: str, content: Any, *, tools: Any) -> str:
        """A conversation of one message, rendered; empty if the template refuses it."""
        message = {"role": "user", "content": content}
        try:
            return self._run(
                name, {"messages": [message], "tools": tools, "documents": None, "add_generation_prompt": False}
            )
        except ChatTemplateError:
            return ""


def _mark_end(message: dict[str, Any]) -> None:
    content = message["content"]
    if not isinstance(content, list):
        message["content"] = (content or "") + _HERE
    else:
        message["content"] = [{"type": "text", "text": content[-1]["text"] + _HERE}]


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_HERE)
    if end < 0:
        raise ChatTemplateError(
            "continue_final_message: the chat template does not show the final message's text, so it cannot be "
            "continued; end the messages with an assistant message",
            param="continue_final_message",
        )
    return text[:end].replace(_HERE, "")


def _line(error: BaseException) -> str:
    """An error in one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:399] + "…"
