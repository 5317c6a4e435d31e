"""What the words after a command mean: a model, a text, a file.

The model may be the first word or `--model`; the text may follow, come from `--prompt`, or from standard input.
Must not know engines.
"""

import re
import sys
from pathlib import Path

from mini_vllm.cli.options import Options
from mini_vllm.cli.render import note, on_terminal
from mini_vllm.errors import ConfigError, InvalidParameterError

WORDS_HELP = "may be given by a flag instead"  # help pages say it in a sentence, the reference beside the words
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


def take_model(words: list[str], options: Options) -> list[str]:
    """Move the model's name, if the first word is one, into the options; the words that are left."""
    if not words or not may_name_model(options):
        return words
    options.engine["model"] = words[0]
    return words[1:]


def take_model_and_text(words: list[str], options: Options, *, text: str | None = None) -> str:
    """The text of `[MODEL] [TEXT]`, `--prompt` or standard input, in this order of precedence.

    A single word is the model if the text comes from elsewhere or if it looks like one (an alias, an existing path,
    owner/name); otherwise it is the text. `InvalidParameterError` when there is no text.
    """
    rest = list(words)
    if rest and may_name_model(options) and (len(rest) > 1 or text is not None or is_model(rest[0])):
        rest = take_model(rest, options)
    if len(rest) > 1 or (rest and text is not None):
        raise InvalidParameterError(
            f"there is one text too many: {rest[-1][:60]!r}; put the text in quotes", param="prompt"
        )
    found = rest[0] if rest else text
    if found is not None and found != "-":
        return found
    if on_terminal(sys.stdin):
        raise InvalidParameterError("there is no text; give it in quotes, or through standard input", param="prompt")
    piped = sys.stdin.read().removesuffix("\n")  # the one that echo and editors put there
    if not piped and len(rest) < len(words):
        note(f"{words[0]} is read as the model, and standard input is empty: the text is empty; give one in quotes")
    return piped


def may_name_model(options: Options) -> bool:
    """Whether a word may still name the model: `--model` was not given."""
    return "model" not in options.engine or options.model_from_environment


def is_model(word: str) -> bool:
    """Whether a word names a model: an alias, something that exists, or owner/name."""
    from mini_vllm.weights import ALIASES

    if word in ALIASES or word.endswith(".gguf") or _REPOSITORY.fullmatch(word):
        return True
    try:
        return Path(word).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def no_more(words: list[str]) -> None:
    """`ConfigError` for words that nobody asked for."""
    if words:
        raise ConfigError(f"there is one word too many: {words[0]!r}")
