"""Where a model keeps its chat templates: files of a folder. Reads text, renders nothing."""

import json
from pathlib import Path
from typing import Any

from mini_vllm.errors import ChatTemplateError, WeightsError

_MAX_BYTES = 256 * 2**20  # of any file read here
_MAX_TEMPLATE_BYTES = 2**20


def folder_templates(folder: Path) -> dict[str, str]:
    """Name -> source of every template in a folder; the main one is `default`.

    Later places win: tokenizer_config.json (one, or a list of named ones), chat_template.json, chat_template.jinja,
    additional_chat_templates/NAME.jinja.
    """
    found = named_templates(read_json(folder / "tokenizer_config.json").get("chat_template"))
    found |= named_templates(read_json(folder / "chat_template.json").get("chat_template"))
    if (folder / "chat_template.jinja").is_file():
        found["default"] = read_template(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = read_template(path)
    return found


def named_templates(value: Any) -> dict[str, str]:
    """A template as configurations write it: text, a list of `{name, template}`, or an object of them."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {str(name): source for name, source in value.items() if isinstance(source, str)}
    found = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            found[str(entry.get("name", "default"))] = entry["template"]
    return found


def template_file(path: Path) -> dict[str, str]:
    """The template of `--chat-template FILE`: Jinja text, or JSON with a `chat_template` field."""
    if not path.is_file():
        raise ChatTemplateError(f"chat template file {path} does not exist", param="chat_template")
    if path.suffix == ".json":
        found = named_templates(read_json(path).get("chat_template"))
        if not found:
            raise ChatTemplateError(f"{path} has no chat_template field", param="chat_template")
        return found
    return {"default": read_template(path)}


def read_template(path: Path) -> str:
    """A template file's text (`ChatTemplateError` when it is not text or is too large)."""
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ChatTemplateError(
                f"chat template {path} has {path.stat().st_size} bytes; at most {_MAX_TEMPLATE_BYTES} are read",
                param="chat_template",
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"chat template {path} cannot be read ({error})", param="chat_template") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file; {} when there is no such file (`WeightsError` when it is broken)."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes, more than {_MAX_BYTES}")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read ({error}); download it again", param="model") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds {type(content).__name__} where an object belongs", param="model")
    return content
