"""The state of a chat at the command line, and its /commands. Must not know engines or terminals."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_vllm.errors import InvalidParameterError, UserError
from mini_vllm.types import SamplingParams

HELP = """\
/help               this list
/system [TEXT]      set the system message, or show it
/history            show the conversation
/undo               take back the last question and its answer
/retry              answer the last question again
/clear              begin anew (keeps the system message)
/set NAME VALUE     set a sampling parameter, such as /set temperature 0.2
/params             show the sampling parameters
/save FILE          write the conversation as JSON
/load FILE          go on with a saved conversation
/exit               leave (also Ctrl-D)"""
_NAMES = frozenset(entry.name for entry in fields(SamplingParams)) - {"n"}


@dataclass(slots=True)
class Conversation:
    """Messages so far, and how answers are sampled."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    ended: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the chat template gets."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns]

    def ask(self, text: str) -> None:
        """The user's next turn."""
        self.turns.append({"role": "user", "content": text})

    def reply(self, text: str) -> None:
        """The assistant's answer to it."""
        self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Remove the last question and what follows it; the question, or None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None


def run_command(line: str, talk: Conversation) -> tuple[str, str | None]:
    """Carry out a /command: (what to show, a question to ask again or None). Mistakes are shown, not raised."""
    name, _, rest = line[1:].partition(" ")
    action = _ACTIONS.get(name.strip().lower())
    if action is None:
        return f"unknown command /{name}; /help lists them", None
    try:
        return action(talk, rest.strip())
    except (UserError, OSError, ValueError) as error:
        return f"error: {error}", None


def _help(talk: Conversation, rest: str) -> tuple[str, str | None]:
    return HELP, None


def _system(talk: Conversation, rest: str) -> tuple[str, str | None]:
    if rest:
        talk.system = rest
        return "system message set", None
    return talk.system or "there is no system message", None


def _history(talk: Conversation, rest: str) -> tuple[str, str | None]:
    shown = "\n".join(f"{message['role']}: {message['content']}" for message in talk.messages)
    return shown or "nothing was said yet", None


def _undo(talk: Conversation, rest: str) -> tuple[str, str | None]:
    question = talk.take_back()
    return ("there is nothing to undo" if question is None else f"taken back: {question}"), None


def _retry(talk: Conversation, rest: str) -> tuple[str, str | None]:
    question = talk.take_back()
    return ("there is nothing to retry", None) if question is None else ("", question)


def _clear(talk: Conversation, rest: str) -> tuple[str, str | None]:
    talk.turns.clear()
    return "conversation cleared", None


def _set(talk: Conversation, rest: str) -> tuple[str, str | None]:
    name, _, text = rest.partition(" ")
    name = {"max_new_tokens": "max_tokens"}.get(name.replace("-", "_"), name.replace("-", "_"))
    if name not in _NAMES or not text.strip():
        raise InvalidParameterError(f"write /set NAME VALUE with one of {', '.join(sorted(_NAMES))}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text.strip()
    changed = {**talk.sampling, name: value}
    SamplingParams(**changed)
    talk.sampling[name] = value
    return f"{name} = {value!r}", None


def _params(talk: Conversation, rest: str) -> tuple[str, str | None]:
    shown = "\n".join(f"{name} = {value!r}" for name, value in sorted(talk.sampling.items()))
    return shown or "all at the model's defaults", None


def _save(talk: Conversation, rest: str) -> tuple[str, str | None]:
    if not rest:
        raise InvalidParameterError("write /save FILE")
    Path(rest).expanduser().write_text(json.dumps(talk.messages, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return f"saved {len(talk.messages)} messages to {rest}", None


def _load(talk: Conversation, rest: str) -> tuple[str, str | None]:
    if not rest:
        raise InvalidParameterError("write /load FILE")
    messages = json.loads(Path(rest).expanduser().read_text(encoding="utf-8"))
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages
    ):
        raise InvalidParameterError(f"{rest} is no saved conversation")
    talk.system = next((message["content"] for message in messages if message.get("role") == "system"), talk.system)
    talk.turns = [message for message in messages if message.get("role") != "system"]
    return f"loaded {len(messages)} messages", None


def _exit(talk: Conversation, rest: str) -> tuple[str, str | None]:
    talk.ended = True
    return "", None


_ACTIONS: dict[str, Callable[[Conversation, str], tuple[str, str | None]]] = {
    "help": _help,
    "?": _help,
    "system": _system,
    "history": _history,
    "undo": _undo,
    "retry": _retry,
    "clear": _clear,
    "reset": _clear,
    "set": _set,
    "params": _params,
    "save": _save,
    "load": _load,
    "exit": _exit,
    "quit": _exit,
}
