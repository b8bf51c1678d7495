"""Allowed values in words, and the JSON Schema of the whole config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PydanticUserError

from forge_core.config.layers import SECTIONS
from forge_core.contracts.errors import UsageError
from forge_core.sections import (
    ALIASES,
    COMPONENT_MAPS,
    RUN_WIDE,
    SHARED_SECTIONS,
)

if TYPE_CHECKING:
    from forge_core.contracts.component import Component
    from forge_core.plugins.catalog import Catalog

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


def config_schema(catalog: Catalog) -> Schema:
    """JSON Schema (2020-12) of a whole config with every installed component."""
    defs: Schema = {}
    names = [*SECTIONS, *catalog.sections.added]
    sections = {name: _section(catalog, name, defs) for name in names}
    of_stage = {name: schema for name, schema in sections.items() if name not in RUN_WIDE}
    stage = {"type": "object", "properties": of_stage, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Forge config",
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "the run's name"},
            "extends": {"type": "string", "description": "a file beside this one, or a preset"},
            "stages": {
                "type": "object",
                "description": "stage -> what it changes in the sections of the top level",
                "additionalProperties": {"anyOf": [stage, {"type": "null"}]},
            },
            **sections,
        },
        "additionalProperties": False,
        "$defs": defs,
    }


def component_schema(catalog: Catalog, family: str, name: str) -> Schema:
    """JSON Schema of one component's section.

    Raises:
        UsageError: there is no such family.
        PluginError: there is no such component.
    """
    sections = catalog.sections.of_family(family)
    if not sections:
        raise UsageError(f"no family is called {family!r} (allowed: {', '.join(catalog.families)})")
    section = sections[0]
    defs: Schema = {}
    component = catalog.get(family, name)
    schema = _variant(catalog, section, family, name, component, defs, use_required=True)
    return {**schema, "title": f"{family} {name}", "$defs": defs}


def _section(catalog: Catalog, section: str, defs: Schema) -> Schema:
    nothing: Schema = {"type": "null"}
    if section in SHARED_SECTIONS:
        return {"anyOf": [_hoisted(SHARED_SECTIONS[section], section, defs), nothing]}
    if (family := catalog.sections.family(section)) is not None:
        variants = [
            _variant(
                catalog,
                section,
                family,
                name,
                component,
                defs,
                use_required=section != family or not component.default,
            )
            for name, component in _selectable(catalog, family)
        ]
        return {"anyOf": [*variants, nothing], "description": _about(catalog, section, family)}
    family = COMPONENT_MAPS[section]
    named = {
        name: [
            _variant(catalog, section, family, name, component, defs, use_required=required)
            for required in (True, False)
        ]
        for name, component in _selectable(catalog, family)
    }
    explicit = [variant for variant, _ in named.values()]
    return {
        "type": "object",
        "description": f"part -> a {family}; use may be left out where the part is called like it",
        "properties": {
            name: {"anyOf": [*(v for v in explicit if v is not with_use), without_use, nothing]}
            for name, (with_use, without_use) in named.items()
        },
        "additionalProperties": {"anyOf": [*explicit, nothing]},
    }


def _selectable(catalog: Catalog, family: str) -> list[tuple[str, Component[Any]]]:
    """What ``use`` may say in a family; ``provider:name`` where two plugins have one name."""
    entries = catalog.entries(family)
    names = Counter(entry.name for entry in entries)
    return [
        (
            entry.name if names[entry.name] == 1 else f"{entry.provider.provider}:{entry.name}",
            entry.component,
        )
        for entry in entries
    ]


def _about(catalog: Catalog, section: str, family: str) -> str:
    chosen = f"a {family}, chosen by use"
    added = catalog.sections.added.get(section)
    return chosen if added is None else f"{added.summary}; {chosen}"


def _variant(
    catalog: Catalog,
    section: str,
    family: str,
    name: str,
    component: Component[Any],
    defs: Schema,
    *,
    use_required: bool,
) -> Schema:
    """The section as it looks with this component chosen."""
    schema = dict(_hoisted(component.settings, f"{family}.{name}", defs))
    kernel = catalog.sections.keys(section)
    schema["properties"] = {
        "use": {"const": name, "description": component.summary},
        **(_hoisted(kernel, section, defs)["properties"] if kernel is not None else {}),
        **_aliased(section),
        **schema.get("properties", {}),
    }
    # Required settings may come from another layer, so that no layer has to have them.
    schema["required"] = ["use"] if use_required else []
    return schema


def _aliased(section: str) -> Schema:
    """Keys that may be typed in this section and belong to another one."""
    found: Schema = {}
    for alias, real in ALIASES.items():
        (alias_section, alias_key), (real_section, real_key) = alias.split("."), real.split(".")
        if alias_section == section:
            properties = model_schema(SHARED_SECTIONS[real_section])["properties"]
            found[alias_key] = properties[real_key]
    return found


def _hoisted(model: type[BaseModel], prefix: str, defs: Schema) -> Schema:
    """A model's schema whose nested definitions moved to ``defs`` under names of their own."""
    template = f"#/$defs/{prefix}.{{model}}"
    try:
        schema = model.model_json_schema(ref_template=template)
    except PydanticUserError:
        return model_schema(model)
    for name, definition in schema.pop("$defs", {}).items():
        defs[f"{prefix}.{name}"] = definition
    return schema


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
