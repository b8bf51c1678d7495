"""pydantic's errors as lines for a person: where, the key as typed, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from forge_core.config.layers import MOST_PROBLEMS, choices
from forge_core.config.schema import Schema, describe, field_schema, model_schema
from forge_core.config.tree import Leaf, Node, Table
from forge_core.config.yaml_source import dump_inline, shortened

Path = list[str | int]


def translate(
    error: ValidationError,
    model: type[BaseModel],
    table: Table,
    *,
    owner: str = "",
    other_keys: Iterable[str] = (),
    inside: Mapping[str, str] | None = None,
) -> list[str]:
    """One line for each problem in a section.

    Args:
        error: what pydantic said.
        model: the settings class that was asked.
        table: the section, whose leaves know where they were typed.
        owner: such as ``loss mine``, for components.
        other_keys: what else the section may hold beside the model's fields.
        inside: keys of sections inside this one -> these sections, for suggestions.
    """
    schema = model_schema(model)
    lines = [
        _line(detail, schema, table, owner, other_keys, inside or {})
        for detail in error.errors(include_url=False)[:MOST_PROBLEMS]
    ]
    return list(dict.fromkeys(lines))


def _line(
    detail: ErrorDetails,
    schema: Schema,
    table: Table,
    owner: str,
    other_keys: Iterable[str],
    inside: Mapping[str, str],
) -> str:
    kind = detail["type"]
    path, node, inner = _place(table, detail)
    key = node.origin.key + _suffix(inner)
    start = f"{node.origin.where}: {key}"
    of_owner = f" of {owner}" if owner else ""
    if kind == "extra_forbidden":
        parent = field_schema(schema, path[:-1]) or {}
        defs = schema.get("$defs", {})
        allowed = set(_properties(parent, defs))
        if len(path) == 1:
            allowed |= set(other_keys)
        else:
            of_owner = ""
        word = str(path[-1])
        if len(path) == 1 and word in inside:
            there = f"{key.removesuffix(word)}{inside[word]}.{word}"
            return f"{start}: unknown key{of_owner}; did you mean {there}?"
        return f"{start}: unknown key{of_owner}{choices(word, allowed, key.removesuffix(word))}"
    found = field_schema(schema, path)
    if kind == "missing":
        about = (found or {}).get("description")
        needs = f"{owner} needs it" if owner else "it has no default"
        return f"{start}: missing; {needs}{f' ({about})' if about else ''}"
    if kind in {"value_error", "assertion_error"}:
        return f"{start}: {detail['msg'].split(', ', 1)[-1]}"
    allowed_here = describe(found, schema.get("$defs", {})) if found and path else ""
    message = f"must be {allowed_here}" if allowed_here else _lower(detail["msg"])
    near = ""
    if found and isinstance(detail["input"], str) and "enum" in found:
        near = choices(detail["input"], map(str, found["enum"])).partition(" (allowed")[0]
    return f"{start}: {message}; not {_typed(node, inner, detail['input'])}{near}"


def _place(table: Table, detail: ErrorDetails) -> tuple[Path, Node, Path]:
    """Follow pydantic's location down the tree.

    Returns the path without the tags that pydantic puts in for unions, the deepest node there is,
    and the rest of the path, which lies inside that node's value or is missing.
    """
    path: Path = []
    inner: Path = []
    node: Node = table
    data: Any = None
    *_, last = detail["loc"] or ("",)
    for index, step in enumerate(detail["loc"]):
        if isinstance(node, Table) and not inner:
            child = node.items.get(str(step))
            if child is not None:
                node, path = child, [*path, step]
                data = child.value if isinstance(child, Leaf) else None
                continue
        elif _inside(data, step):
            data, path, inner = data[step], [*path, step], [*inner, step]
            continue
        if detail["type"] == "missing" and index == len(detail["loc"]) - 1:
            path, inner = [*path, last], [*inner, last]
    return path, node, inner


def _inside(data: Any, step: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(step, int) and step < len(data)
    return isinstance(data, dict) and step in data


def _suffix(inner: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in inner)


def _typed(node: Node, inner: Path, value: Any) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if inner or not isinstance(node.value, str | int | float | bool):
        return shortened(dump_inline(value))
    return repr(shortened(node.text))


def _properties(schema: Schema, defs: Schema) -> Iterable[str]:
    if "$ref" in schema:
        return _properties(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return [name for option in schema["anyOf"] for name in _properties(option, defs)]
    return list(schema.get("properties", ()))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
