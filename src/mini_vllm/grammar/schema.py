"""JSON schemas, made ready for the library: checked, closed, with bounded white space. Pure.

Must not know tokens, nor who asks.
"""

import json
from collections.abc import Iterator
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.types.structured import PARAM

MAX_DEPTH = 64
MAX_WHITESPACE = 8  # characters between two JSON tokens: a model that likes line feeds comes to an end

_SCHEMA = ("items", "additionalItems", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OPENING = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"})
_SHAPING = frozenset({"properties", "required", "minProperties"}) | _OPENING
_JOINING = frozenset({"anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas"})


def prepare_schema(text: str, *, strict: bool) -> dict[str, Any]:
    """The schema in JSON text, with the library's options in it (`x-guidance`).

    Objects that list their properties and do not say whether others may follow are closed: what fits the closed schema
    fits the open one, and a model that may always add one more property seldom comes to an end. Schemas that join
    others (allOf, or anyOf and $ref beside properties) stay as they are, because closing the parts could leave nothing.
    `strict`: keywords that cannot be enforced are an error that names them, else they are left out of account.
    """
    schema = _parse(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        shown = "false, which nothing fits" if schema is False else f"{type(schema).__name__}, not an object"
        raise InvalidParameterError(
            f"the JSON schema is {shown}; give an object such as {{'type': 'object'}}", param=PARAM
        )
    nodes = list(_walk(schema, 0))
    if not any(_joins(node) for node in nodes):
        for node in nodes:
            _close(node)
    options = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE}}}", "lenient": not strict}
    return {**schema, "x-guidance": options}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the JSON schema is not valid JSON: {error}", param=PARAM) from None


def _walk(schema: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Every sub-schema, where it is one: names of properties and values of enums are not looked at."""
    if depth > MAX_DEPTH:
        raise InvalidParameterError(
            f"the JSON schema is nested more than {MAX_DEPTH} deep; make it flatter, or use $ref", param=PARAM
        )
    if not isinstance(schema, dict):
        return
    yield schema
    for child in _children(schema):
        yield from _walk(child, depth + 1)


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for name in _SCHEMA:
        yield schema.get(name)
    for name in _SCHEMAS:
        yield from found if isinstance(found := schema.get(name), list) else ()
    for name in _NAMED_SCHEMAS:
        yield from found.values() if isinstance(found := schema.get(name), dict) else ()
    yield from found if isinstance(found := schema.get("items"), list) else ()


def _joins(node: dict[str, Any]) -> bool:
    """Whether a value must fit several schemas at once that speak of its properties."""
    return "allOf" in node or bool(node.keys() & _JOINING and node.keys() & _SHAPING)


def _close(node: dict[str, Any]) -> None:
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or node.keys() & _OPENING:
        return
    least = node.get("minProperties", 0)
    if {*map(str, required)} <= properties.keys() and isinstance(least, int) and least <= len(properties):
        node["additionalProperties"] = False
