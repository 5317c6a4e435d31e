"""From the bytes of a body to a request struct, or to an error that says what is wrong with them.

Must not know the engine.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect

from mini_vllm.errors import InvalidParameterError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
MAX_LOGGED_FIELDS = 100
MAX_DEPTH = 100  # of lists and objects inside a field that may hold any JSON
_NEUTRAL = frozenset({b"null", b"false", b"[]", b"{}", b'""'})  # values that ask for nothing
_HALF_PAIR = re.compile(  # of UTF-16, as JSON escapes them: a first half alone, or a second
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    rb"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


class BodyReader(Generic[R]):
    """Decodes the bodies of one endpoint.

    Explicit nulls count as absent, the last of duplicate keys counts, NaN and Infinity are refused. `rejected` maps
    field names to the reason that a caller who sets them gets; other fields without a place in `kind` are ignored.
    """

    def __init__(self, kind: type[R], *, ignored: Mapping[str, str], rejected: Mapping[str, str]) -> None:
        self._kind = kind
        self._rejected = rejected
        self._known = {*kind.__struct_fields__, *ignored}
        self._logged: set[str] = set()
        # Fields that may hold any JSON; the types of all others bound their depth.
        self._free = [field.name for field in _fields(msgspec.inspect.type_info(kind)) if _holds_any(field.type)]

    def decode(self, body: bytes) -> R:
        """The request in a body; `InvalidParameterError` if there is none."""
        for name, value in _decode(body, dict[str, msgspec.Raw]).items():
            if name in self._known:
                continue
            if name in self._rejected:
                if bytes(value).strip() not in _NEUTRAL:
                    raise InvalidParameterError(f"{name}: {self._rejected[name]}", param=name)
            elif name not in self._logged and len(self._logged) < MAX_LOGGED_FIELDS:
                self._logged.add(name)
                logger.info("ignoring the unknown request field %.100r, now and later", name)
        request = _decode(body, self._kind)
        for name in self._free:
            _check_depth(name, getattr(request, name))
        return request


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error))
        raise InvalidParameterError(message, param=param) from None
    except (msgspec.DecodeError, ValueError) as error:
        if found := _HALF_PAIR.search(body):
            raise InvalidParameterError(
                f"the request body holds {found.group(1).decode()}, half of a surrogate pair, which is no character; "
                "send valid Unicode",
                code="invalid_json",
            ) from None
        raise InvalidParameterError(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise InvalidParameterError("the request body is nested too deeply", code="invalid_json") from None


def _check_depth(name: str, value: Any) -> None:
    """Refuse what recursive readers further on could choke on."""
    level, depth = _children([value]), 0
    while level:
        level, depth = [inner for outer in level for inner in _children(outer)], depth + 1
        if depth > MAX_DEPTH:
            raise InvalidParameterError(f"{name} is nested more than {MAX_DEPTH} levels deep; flatten it", param=name)


def _children(value: Any) -> list[Any]:
    """The lists and objects directly inside one."""
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    inside = value.values() if isinstance(value, dict) else value
    return [each for each in inside if isinstance(each, dict | list | msgspec.Struct)]


def _holds_any(kind: msgspec.inspect.Type) -> bool:
    """Whether a value of this type may hold JSON of any shape."""
    match kind:
        case msgspec.inspect.AnyType():
            return True
        case msgspec.inspect.UnionType():
            return any(map(_holds_any, kind.types))
        case msgspec.inspect.ListType():
            return _holds_any(kind.item_type)
        case msgspec.inspect.DictType():
            return _holds_any(kind.value_type)
        case _:
            return any(_holds_any(field.type) for field in _fields(kind))


def _fields(kind: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Field]:
    return kind.fields if isinstance(kind, msgspec.inspect.StructType) else ()


def _explain(error: str) -> tuple[str, str | None]:
    """A sentence and the field that it is about: ``Expected `int`, got `str` - at `$.n` `` names n."""
    if found := _PATH.search(error):
        path = found.group(1)
        return f"{path or 'the request body'}: {error[: found.start()]}", path or None
    if found := re.search(r"missing required field `(\w+)`", error):
        return f"{found.group(1)} is required", found.group(1)
    return f"the request body: {error}", None
