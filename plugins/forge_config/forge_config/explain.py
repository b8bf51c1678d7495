"""Where values came from, what they mean, and where two configs differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from forge_config.schema import an
from forge_core import ConfigError, Provenance
from forge_core.config.layers import choices
from forge_core.config.schema import describe, field_schema, model_schema
from forge_core.config.yaml_source import dump_inline
from forge_core.sections import (
    ALIASES,
    COMPONENT_MAPS,
    COMPONENT_SECTIONS,
    SHARED_SECTIONS,
    Sections,
    section_of,
)

if TYPE_CHECKING:
    from forge_core import RunConfig, Selection, StageConfig


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One value.

    Args:
        key: where it stands; under ``stages.NAME.`` when it is not the same in all stages.
        provenance: where it came from.
        description: what it means, with its unit.
        allowed: what it may be, in words.
        default: what it is when no layer says anything, as YAML.
    """

    key: str
    provenance: Provenance
    description: str = ""
    allowed: str = ""
    default: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between two configs; None where one of them does not have the key."""

    key: str
    left: Provenance | None
    right: Provenance | None


def explain(config: RunConfig, key: str) -> list[Explanation]:
    """A value, or all of a section; once for each stage where the stages differ.

    Args:
        config: the resolved config.
        key: such as ``training.steps``, ``trainer.lr``, ``loss``, ``stages.second.training``.

    Raises:
        ConfigError: the config has no such key.
    """
    wanted = _without_alias(key)
    found = _below(config, wanted) or _in_all_stages(config, wanted)
    if not found:
        known = {_relative(config, name)[1] for name in config.provenance}
        known |= {name.rpartition(".")[0] for name in known} - {""}
        near = choices(wanted, known).partition(" (allowed")[0]
        raise ConfigError(f"{key}: no such key in this config{near}")
    return [_explanation(config, name, provenance) for name, provenance in found.items()]


def differences(left: RunConfig, right: RunConfig) -> list[Difference]:
    """Every key whose value differs, in the order of the left config, then of the right."""
    keys = dict.fromkeys([*left.provenance, *right.provenance])
    pairs = [(key, left.provenance.get(key), right.provenance.get(key)) for key in keys]
    return [
        Difference(key=key, left=one, right=other)
        for key, one, other in pairs
        if one is None or other is None or one.value != other.value
    ]


def _without_alias(key: str) -> str:
    for alias, real in ALIASES.items():
        if key == alias or (key.startswith("stages.") and key.endswith(f".{alias}")):
            return key.removesuffix(alias) + real
    return key


def _below(config: RunConfig, key: str) -> dict[str, Provenance]:
    return {
        name: provenance
        for name, provenance in config.provenance.items()
        if name == key or name.startswith(f"{key}.")
    }


def _in_all_stages(config: RunConfig, key: str) -> dict[str, Provenance]:
    """The key in every stage; without the stage's name where all say the same."""
    by_stage = {stage.name: _below(config, f"stages.{stage.name}.{key}") for stage in config.stages}
    found: dict[str, Provenance] = {}
    for stage, values in by_stage.items():
        for name, provenance in values.items():
            short = name.removeprefix(f"stages.{stage}.")
            everywhere = [other.get(f"stages.{s}.{short}") for s, other in by_stage.items()]
            same = all(
                other is not None and _anonymous(other) == _anonymous(provenance)
                for other in everywhere
            )
            found[short if same else name] = provenance
    return found


def _anonymous(provenance: Provenance) -> Provenance:
    """Without the stage's name, which a field's default carries in its key."""
    return replace(provenance, key="") if not provenance.where else provenance


def _relative(config: RunConfig, key: str) -> tuple[StageConfig, str]:
    """The stage a key belongs to (the first for run-wide ones) and the key inside it."""
    for stage in config.stages:
        if key.startswith(f"stages.{stage.name}."):
            return stage, key.removeprefix(f"stages.{stage.name}.")
    return config.stages[0], key


def _explanation(config: RunConfig, key: str, provenance: Provenance) -> Explanation:
    bare = Explanation(key=key, provenance=provenance)
    stage, relative = _relative(config, key)
    section, path = section_of(relative)
    if section in SHARED_SECTIONS:
        return _with_field(bare, SHARED_SECTIONS[section], path)
    selection: Selection[Any] | None = None
    if section in COMPONENT_SECTIONS:
        attribute = section.rpartition(".")[2]
        selection = config.runtime if section == "runtime" else getattr(stage, attribute)
    elif section in stage.sections:
        selection = stage.sections[section].selection
    elif section in COMPONENT_MAPS and path:
        part, *path = path
        rewards = {name: reward.selection for name, reward in stage.rewards.items()}
        selection = {"trackers": config.trackers, "rewards": rewards}[section].get(part)
    if selection is None or not path:
        return bare
    if path == ["use"]:
        return replace(
            bare,
            description=selection.component.summary,
            allowed=f"the name of {an(selection.family)}, or FILE.py:NAME",
        )
    added = {name: config.section for name, config in stage.sections.items()}
    kernel = Sections(added).keys(section)
    if kernel is not None and path[0] in kernel.model_fields:
        return _with_field(bare, kernel, path)
    return _with_field(bare, selection.component.settings, path)


def _with_field(bare: Explanation, model: type[BaseModel], path: list[str]) -> Explanation:
    schema = model_schema(model)
    found = field_schema(schema, path)
    if found is None:
        return bare
    return replace(
        bare,
        description=found.get("description", ""),
        allowed=describe(found, schema.get("$defs", {})),
        default=dump_inline(found["default"]) if "default" in found else "",
    )
