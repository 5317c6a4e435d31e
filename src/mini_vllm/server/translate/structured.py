"""What the output must look like: `response_format` and its relatives → `StructuredOutputsParams`. Pure."""

from collections.abc import Mapping
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.common import GenerationRequest
from mini_vllm.types import StructuredOutputsParams

_FIELDS = ("json", "regex", "choice", "grammar")


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """The one thing that a request asks for; None if it leaves the model free."""
    asked: dict[str, dict[str, Any]] = {}
    if (wanted := _response_format(request.response_format)) is not None:
        asked["response_format"] = wanted
    if request.structured_outputs:
        asked["structured_outputs"] = dict(request.structured_outputs)
    for name in _FIELDS:
        for field in (name, f"guided_{name}"):
            if (value := getattr(request, field)) is not None:
                asked[field] = {name: value}
    if not asked:
        return None
    if len(asked) > 1:
        raise InvalidParameterError(
            f"{' and '.join(asked)} each say what the output must look like; give one of them", param=list(asked)[-1]
        )
    [(field, wanted)] = asked.items()
    try:
        given = {name: value for name, value in wanted.items() if value is not None}
        return StructuredOutputsParams(**given, source=field)
    except TypeError:
        unknown = next((name for name in wanted if name not in (*_FIELDS, "json_object", "strict")), "source")
        raise InvalidParameterError(
            f"structured_outputs has {unknown!r:.50}; it takes one of {', '.join(_FIELDS)} or json_object", param=field
        ) from None
    except InvalidParameterError as error:
        raise InvalidParameterError(str(error), param=field) from None


def _response_format(wanted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not wanted:
        return None
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            inner = wanted.get("json_schema")
            if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping | bool):
                raise InvalidParameterError(
                    "response_format json_schema needs json_schema.schema, a JSON schema that is an object",
                    param="response_format",
                )
            return {"json": inner["schema"], "strict": inner.get("strict") is True}
        case kind:
            raise InvalidParameterError(
                f"response_format has type {kind!r:.50}; it must be text, json_object or json_schema",
                param="response_format",
            )
