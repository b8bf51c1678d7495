"""The JSON Schema of the whole config, and of one component's section."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PydanticUserError

from forge_core import UsageError
from forge_core.config.layers import SECTIONS
from forge_core.config.schema import Schema, model_schema
from forge_core.sections import ALIASES, COMPONENT_MAPS, NESTED, RUN_WIDE, SHARED_SECTIONS

if TYPE_CHECKING:
    from forge_core import Component
    from forge_core.plugins.catalog import Catalog


def an(word: str) -> str:
    """A word with its article: ``a loss``, ``an optimizer``."""
    return f"an {word}" if word[0] in "aeio" else f"a {word}"


def config_schema(catalog: Catalog) -> Schema:
    """JSON Schema (2020-12) of a whole config with every installed component."""
    defs: Schema = {}
    names = [*(name for name in SECTIONS if "." not in name), *catalog.sections.added]
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
        schema = dict(_hoisted(SHARED_SECTIONS[section], section, defs))
        for name in NESTED.get(section, ()):
            inner = _section(catalog, f"{section}.{name}", defs)
            inner["anyOf"] = [*inner["anyOf"], _name_alone(catalog, f"{section}.{name}")]
            schema["properties"] = {**schema["properties"], name: inner}
        return {"anyOf": [schema, nothing]}
    if (family := catalog.sections.family(section)) is not None:
        variants = [
            _variant(
                catalog,
                section,
                family,
                name,
                component,
                defs,
                use_required=section != catalog.sections.home(family) or not component.default,
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


def _name_alone(catalog: Catalog, section: str) -> Schema:
    """A component's name where its section would stand: ``optimizer: mine``."""
    family = catalog.sections.family(section)
    assert family is not None
    names = [name for name, _ in _selectable(catalog, family)]
    return {"anyOf": [{"enum": names}, {"type": "string", "pattern": r"\.py:\w+$"}]}


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
    chosen = f"{an(family)}, chosen by use"
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
