"""Every error that mini-vLLM raises on purpose.

MiniVLLMError
├── UserError                  the caller's mistake: exit code 2, HTTP 400
│   ├── InvalidParameterError  a sampling or request parameter is out of range
│   ├── ContextLengthError     prompt (+ requested output) cannot fit
│   ├── ConfigError            contradictory or impossible settings
│   ├── ChatTemplateError      no template, or the template refused the messages
│   └── ModelError             the model cannot be found or used
│       ├── ModelNotFoundError     no such folder, file, repository or alias
│       ├── UnsupportedModelError  understood, but this engine cannot run it
│       └── WeightsError           a broken, truncated, missing or mis-shaped file or tensor
├── MissingDependencyError     an optional part is not installed; says the command that installs it
├── EngineStepError            a step failed and took this request with it; the next request works: HTTP 500
├── EngineBusyError            the waiting queue is full: HTTP 429
└── EngineDeadError            the engine failed and cannot answer: HTTP 500/503

A message names the offending value, the limit it broke and what to do about it, in one line.
"""

import sys

INSTALL_TORCH = f"{sys.executable or 'python'} -m pip install 'mini-vllm[torch]'"  # into the environment that runs


MAX_MESSAGE = 2000  # characters; values out of broken files may have any length


def _one_line(message: str) -> str:
    """Values in a message may hold anything: line ends become spaces, what cannot be shown is escaped."""
    line = " ".join(message.splitlines())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "…"


class MiniVLLMError(Exception):
    """Base of all errors raised on purpose by this package."""


class UserError(MiniVLLMError):
    """The caller's mistake. `param` names the field at fault, `code` is a stable identifier for programs."""

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(_one_line(message))
        self.param = param
        if code is not None:
            self.code = code


class InvalidParameterError(UserError):
    """A request parameter has a wrong type or is out of range."""


class ContextLengthError(UserError):
    """The prompt, or prompt plus requested output, exceeds the context or the KV cache."""

    code = "context_length_exceeded"


class ConfigError(UserError):
    """Settings that contradict each other or cannot be met on this machine."""


class ChatTemplateError(UserError):
    """There is no chat template, or it refused these messages."""


class ModelError(UserError):
    """The model cannot be found or used."""


class ModelNotFoundError(ModelError):
    """No local folder, file, hub repository or alias has this name."""

    code = "model_not_found"


class UnsupportedModelError(ModelError):
    """The model is understood but cannot run here; the message says what would run it."""


class WeightsError(ModelError):
    """A weights file is broken, or a tensor is missing, unexpected or mis-shaped."""


class MissingDependencyError(MiniVLLMError):
    """An optional dependency is needed; the message says the command that installs it."""


class EngineStepError(MiniVLLMError):
    """A step failed and the requests in flight are lost; the engine has started afresh and takes new ones."""


class EngineBusyError(MiniVLLMError):
    """The waiting queue is full; try again later."""


class EngineDeadError(MiniVLLMError):
    """The engine has failed or was shut down; the cause is chained."""
