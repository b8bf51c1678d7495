"""JSON Schemas of settings classes, and what they allow in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, PydanticUserError

Schema = dict[str, Any]


def describe(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """What a JSON Schema allows, in words: ``a whole number, at least 1, or null``."""
    schema = _dereference(schema, defs)
    if "anyOf" in schema or "oneOf" in schema:
        options = [describe(option, defs) for option in schema.get("anyOf") or schema["oneOf"]]
        words = list(dict.fromkeys(option for option in options if option))
        comma = "," if any("," in word for word in words) else ""
        return f"{comma} or ".join(words)
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    match schema.get("type"):
        case "integer":
            return "a whole number" + _bounds(schema)
        case "number":
            return "a number" + _bounds(schema)
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "string":
            return "a path" if "path" in schema.get("format", "") else "text"
        case "array":
            return _describe_list(schema, defs)
        case "object":
            keys = ", ".join(schema.get("properties", ()))
            return f"a mapping ({keys})" if keys else "a mapping"
    return ""


def field_schema(schema: Schema, path: Sequence[str | int]) -> Schema | None:
    """The part of a model's JSON Schema that a path leads to, or None where it leads nowhere."""
    defs = schema.get("$defs", {})
    found: list[Schema] = [schema]
    for step in path:
        found = [
            child
            for option in found
            for leaf in _options(option, defs)
            if (child := _child(leaf, step)) is not None
        ]
    return found[0] if found else None


def model_schema(model: type[BaseModel]) -> Schema:
    """A settings class's JSON Schema; an open one where its fields have none."""
    try:
        return model.model_json_schema()
    except PydanticUserError:  # a field of a type that JSON Schema cannot express
        return {"type": "object", "title": model.__name__}


def _dereference(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    return schema


def _options(schema: Schema, defs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    schema = dict(_dereference(schema, defs))
    nested = schema.get("anyOf") or schema.get("oneOf")
    if nested is None:
        return [schema]
    return [leaf for option in nested for leaf in _options(option, defs)]


def _child(schema: Mapping[str, Any], step: str | int) -> Schema | None:
    if isinstance(step, int):
        prefix = schema.get("prefixItems", ())
        child = prefix[step] if step < len(prefix) else schema.get("items")
    else:
        child = schema.get("properties", {}).get(step, schema.get("additionalProperties"))
    return child if isinstance(child, dict) else None


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "multipleOf": "a multiple of",
    }
    return "".join(f", {word} {schema[key]:g}" for key, word in words.items() if key in schema)


def _describe_list(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        items = ", ".join(describe(item, defs) for item in schema["prefixItems"])
        return f"a list [{items}]"
    items = describe(schema.get("items", {}), defs)
    size = "".join(
        f", {word} {schema[key]} long"
        for key, word in (("minItems", "at least"), ("maxItems", "at most"))
        if key in schema
    )
    return (f"a list, each {items}" if items else "a list") + size
