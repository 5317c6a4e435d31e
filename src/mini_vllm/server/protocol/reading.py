"""From the bytes of a body to a request struct, or to an error that says what is wrong with them.

Must not know the engine.
"""

import logging
import re
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from mini_vllm.errors import InvalidParameterError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
MAX_LOGGED_FIELDS = 100
_NEUTRAL = frozenset({b"null", b"false", b"[]", b"{}", b'""'})  # values that ask for nothing
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
        return _decode(body, self._kind)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error))
        raise InvalidParameterError(message, param=param) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidParameterError(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise InvalidParameterError("the request body is nested too deeply", code="invalid_json") from None


def _explain(error: str) -> tuple[str, str | None]:
    """A sentence and the field that it is about: ``Expected `int`, got `str` - at `$.n` `` names n."""
    if found := _PATH.search(error):
        path = found.group(1)
        return f"{path or 'the request body'}: {error[: found.start()]}", path or None
    if found := re.search(r"missing required field `(\w+)`", error):
        return f"{found.group(1)} is required", found.group(1)
    return f"the request body: {error}", None
