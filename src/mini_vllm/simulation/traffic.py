"""Traffic from files: JSON arrays of requests, CSV traces of lengths, or the name of a generator with its settings.

This module must not know engines.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mini_vllm.errors import InvalidParameterError, UserError
from mini_vllm.simulation import generators
from mini_vllm.simulation.arrivals import Arrival
from mini_vllm.types import SamplingParams

FIRST_ID, ID_STRIDE = 1 << 20, 1 << 20  # made-up ids of different requests never meet
MOST = generators.MOST_TOKENS  # of a request's tokens; the same for its priority
MOST_MS = 1e12  # thirty years
_SAMPLING = frozenset(entry.name for entry in fields(SamplingParams)) - {"n", "max_tokens"}
_KNOWN = frozenset({"at_ms", "at", "prompt", "messages", "max_new_tokens", "max_tokens", "priority", "key"})
_KNOWN |= {"deadline_ms", "id", "name"}
_TIME = ("timestamp", "arrived_at", "arrival", "arrival_time", "time", "at")
_PROMPT = ("contexttokens", "prompt_tokens", "num_prompt_tokens", "input_tokens", "num_prefill_tokens", "prompt")
_OUTPUT = ("generatedtokens", "output_tokens", "num_output_tokens", "completion_tokens", "num_decode_tokens", "output")


def load(source: str) -> list[Arrival]:
    """Arrivals in order of time, from a .json or .csv file or a generator such as `poisson:rate=8,requests=100`."""
    if generators.is_spec(source):
        return generators.generate(source)
    try:
        text = Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidParameterError(
            f"traffic {source} cannot be read: {reason}; name a .json or .csv file, or a generator "
            f"({', '.join(generators.KINDS)})",
            param="traffic",
        ) from None
    arrivals = read_csv(source, text) if source.lower().endswith(".csv") else read_json(source, text)
    if not arrivals:
        raise InvalidParameterError(f"traffic {source} has no requests; give it at least one", param="traffic")
    _check_names(source, arrivals)
    return sorted(arrivals, key=lambda arrival: arrival.at)


def read_json(source: str, text: str) -> list[Arrival]:
    """A JSON array of {at_ms, prompt, max_new_tokens, temperature?, top_p?, priority?, key? …}."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"traffic {source} is not JSON: {error}; write an array of {{at_ms, prompt, max_new_tokens}}",
            param="traffic",
        ) from None
    if not isinstance(entries, list):
        raise InvalidParameterError(
            f"traffic {source} holds {type(entries).__name__}; it must be an array of requests", param="traffic"
        )
    return [_entry(f"traffic {source} entry {index}", index, entry) for index, entry in enumerate(entries)]


def _entry(place: str, index: int, entry: Any) -> Arrival:
    if not isinstance(entry, Mapping):
        raise InvalidParameterError(f"{place} is {type(entry).__name__}; write an object", param="traffic")
    unknown = [key for key in entry if key not in _KNOWN and key not in _SAMPLING]
    if unknown:
        raise InvalidParameterError(
            f"{place} has {unknown[0]!r}; known are at_ms, prompt, max_new_tokens, priority, key, deadline_ms and "
            "sampling parameters",
            param="traffic",
        )
    at = _number(place, entry, "at_ms", 0.0) / 1e3 if "at_ms" in entry else _number(place, entry, "at", 0.0)
    deadline = _number(place, entry, "deadline_ms", 0.0) / 1e3 if "deadline_ms" in entry else None
    prompt, messages = entry.get("prompt"), entry.get("messages")
    sampling = {key: value for key, value in entry.items() if key in _SAMPLING}
    try:
        SamplingParams(**sampling, max_tokens=None)
    except (UserError, TypeError) as error:
        raise InvalidParameterError(f"{place}: {error}", param="traffic") from None
    if (prompt is None) == (messages is None):
        fault = "no prompt" if prompt is None else "both prompt and messages"
        raise InvalidParameterError(f"{place} has {fault}; write a text, or messages", param="traffic")
    return Arrival(
        at=at,
        name=_word(place, entry, "id", "") or _word(place, entry, "name", "") or f"r{index}",
        text=prompt if isinstance(prompt, str) else None,
        messages=None if messages is None else _messages(place, messages),
        segments=_ids(place, prompt) if messages is None and not isinstance(prompt, str) else (),
        answer_base=FIRST_ID + index * ID_STRIDE,
        max_tokens=_whole(place, entry, "max_new_tokens" if "max_new_tokens" in entry else "max_tokens", 16),
        sampling=sampling,
        priority=_whole(place, entry, "priority", 0, low=-MOST),
        key=_word(place, entry, "key", ""),
        deadline=deadline,
    )


def _ids(place: str, prompt: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(prompt, Sequence) and prompt and all(type(token_id) is int and token_id >= 0 for token_id in prompt):
        return tuple((token_id, 1) for token_id in prompt)
    raise InvalidParameterError(f"{place}: prompt is {prompt!r:.60}; write a text or token ids", param="traffic")


def _messages(place: str, messages: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(messages, list) and messages and all(isinstance(message, Mapping) for message in messages):
        return tuple(messages)
    raise InvalidParameterError(
        f"{place}: messages is {messages!r:.60}; write at least one {{role, content}}", param="traffic"
    )


def _word(place: str, entry: Mapping[str, Any], name: str, default: str) -> str:
    value = entry.get(name, default)
    if type(value) not in (str, int):
        raise InvalidParameterError(f"{place}: {name} is {value!r:.60}; it must be a text", param="traffic")
    return str(value)


def _whole(place: str, entry: Mapping[str, Any], name: str, default: int, *, low: int = 0) -> int:
    value = entry.get(name, default)
    if type(value) not in (int, float) or not low <= value <= MOST or value != int(value):
        raise InvalidParameterError(
            f"{place}: {name} is {value!r:.60}; it must be a whole number from {low:,} to {MOST:,}", param="traffic"
        )
    return int(value)


def _number(place: str, entry: Mapping[str, Any], name: str, default: float) -> float:
    value = entry.get(name, default)
    if type(value) not in (int, float) or not 0 <= value <= MOST_MS:
        raise InvalidParameterError(
            f"{place}: {name} is {value!r:.60}; it must be a number from 0 to {MOST_MS:g}", param="traffic"
        )
    return float(value)


def _check_names(source: str, arrivals: Sequence[Arrival]) -> None:
    """Each once: explanations and a real replay go by them."""
    known: dict[str, int] = {}
    for index, arrival in enumerate(arrivals):
        if (first := known.setdefault(arrival.name, index)) != index:
            raise InvalidParameterError(
                f"traffic {source} entry {index} has the id {arrival.name!r:.60}, as entry {first} has; "
                "give each its own, or none",
                param="traffic",
            )


def read_csv(source: str, text: str) -> list[Arrival]:
    """Rows of arrival time, prompt tokens and output tokens, as in the public Azure LLM inference traces.

    Times are seconds, or dates such as 2023-11-16 18:15:46.6805900; the first row is the beginning.
    """
    rows = list(csv.reader(text.splitlines()))
    header = [name.strip().lower() for name in rows[0]] if rows else []
    columns = [_column(header, names) for names in (_TIME, _PROMPT, _OUTPUT)]
    if None in columns:
        raise InvalidParameterError(
            f"traffic {source} has the columns {', '.join(header)[:100] or 'none'}; it needs a time (TIMESTAMP), "
            "prompt tokens (ContextTokens) and output tokens (GeneratedTokens)",
            param="traffic",
        )
    found = list[Arrival]()
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        place, width = f"traffic {source} line {number}", 1 + max(column for column in columns if column is not None)
        if len(row) < width:
            raise InvalidParameterError(
                f"{place} has {len(row)} columns; it needs {width}, as the first line says", param="traffic"
            )
        at, prompt, output = (row[column].strip() for column in columns if column is not None)
        lengths = [_count(place, name, text) for name, text in (("prompt", prompt), ("output", output))]
        found.append(_lengths(len(found), _moment(place, at), *lengths))
    origin = min((arrival.at for arrival in found), default=0.0)
    return [replace(arrival, at=arrival.at - origin) for arrival in found]


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _lengths(index: int, at: float, num_prompt: int, num_output: int) -> Arrival:
    base = FIRST_ID + index * ID_STRIDE
    return Arrival(
        at=at,
        name=f"r{index}",
        segments=((base, max(1, num_prompt)),),
        answer_base=base + ID_STRIDE // 2,
        max_tokens=max(1, num_output),
        sampling={"ignore_eos": True},
    )


def _count(place: str, name: str, text: str) -> int:
    try:
        count = int(float(text))
    except (ValueError, OverflowError):
        count = -1
    if not 0 <= count <= MOST:
        raise InvalidParameterError(
            f"{place}: {name} tokens are {text!r:.60}; write a whole number from 0 to {MOST:,}", param="traffic"
        )
    return count


def _moment(place: str, text: str) -> float:
    try:
        seconds = _seconds(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidParameterError(
            f"{place}: the time is {text!r:.60}; write seconds, or a date such as 2023-11-16 18:15:46.68",
            param="traffic",
        )
    return seconds


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.partition(".")
        digits = fraction.rstrip("Z").split("+")[0]
        moment = datetime.fromisoformat(whole.replace("Z", ""))
        return (moment - datetime(1970, 1, 1)).total_seconds() + (float("0." + digits) if digits else 0.0)
