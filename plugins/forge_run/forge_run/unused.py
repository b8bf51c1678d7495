"""Keys of a config that do nothing in the run they are written for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from forge_core import TrainerComponent, UsageError
from forge_core.sections import COMPONENT_MAPS, KERNEL_KEYS, RUN_WIDE, SHARED_SECTIONS, section_of

if TYPE_CHECKING:
    from forge_core import Provenance, RunConfig, Selection, StageConfig

BY_ITSELF = ("default", "recipe ", "model preset ")
"""Layers that speak of sections whether a run uses them or not begin with one of these."""

_SELECTED = ("generator", "environment", "transport")
"""Sections that select a component in every config: only their own keys are worth naming."""


@dataclass(frozen=True)
class Unused:
    """What a stage has no use for.

    Args:
        section: of the config.
        reason: in words.
        keys: of the section, with those below them; empty: all of it.
        refused: the config asks for something that would never happen.
    """

    section: str
    reason: str
    keys: tuple[str, ...] = ()
    refused: bool = False

    def covers(self, key: str) -> bool:
        """Whether it speaks of a dotted key, without ``stages.NAME.``."""
        section, words = section_of(key)
        rest = ".".join(words)
        return section == self.section and (
            not self.keys or any(rest == key or rest.startswith(f"{key}.") for key in self.keys)
        )


def check_unused(config: RunConfig) -> None:
    """Refuse what would never happen: a held-out evaluation without what it needs, an optimizer or
    a schedule for a trainer that takes none.

    Raises:
        UsageError: names the keys, and what is missing.
    """
    for line, refused in _lines(config):
        if refused:
            raise UsageError(line)


def unused_keys(config: RunConfig) -> list[str]:
    """One line for each reason why keys that somebody set do nothing.

    A key that several stages share does nothing only if none of them uses it. A key at its default
    is left out, so that the ``config.yaml`` of a run, which holds every key, has no lines.
    """
    return [line for line, refused in _lines(config) if not refused]


def _lines(config: RunConfig) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each is to be refused."""
    found: dict[tuple[str, str], list[Unused | None]] = {}
    for stage in config.stages:
        unused = list(_unused(stage))
        prefix = f"stages.{stage.name}." if "stages" in config.tree else ""
        for name, value in config.provenance.items():
            key = name.removeprefix(prefix)
            run_wide = name.partition(".")[0] in RUN_WIDE
            is_stages = (name.startswith(prefix) or run_wide) and not key.startswith("stages.")
            if is_stages and _is_set(key, value, stage):
                covering = next((each for each in unused if each.covers(key)), None)
                place = (value.key, value.where)
                if key.partition(".")[0] in COMPONENT_MAPS:
                    # A part with no settings has no place of its own to tell stages apart by.
                    place = (key.partition(".")[0], "")
                found.setdefault(place, []).append(covering)
    lines: dict[tuple[str, bool], list[str]] = {}
    for (typed, _), reasons in found.items():
        first = reasons[0]
        if first is not None and all(reasons):
            lines.setdefault((first.reason, first.refused), []).append(_shown(typed, first))
    for (reason, refused), keys in lines.items():
        inside = tuple(f"{key}." for key in keys)
        named = dict.fromkeys(key for key in keys if not key.startswith(inside))
        yield f"{', '.join(named)}: {reason}", refused


def _shown(typed: str, unused: Unused) -> str:
    """The key, or the section where a component of it was chosen."""
    if unused.section in SHARED_SECTIONS or unused.keys:
        return typed
    before, section, after = typed.partition(unused.section)
    return before + section if after == ".use" or section not in _SELECTED else typed


def _unused(stage: StageConfig) -> Iterator[Unused]:
    """Everything that a stage has no use for."""
    requires = stage.recipe.requires
    sampled, scored = "generator" in requires, stage.evaluates()
    who = f"recipe {stage.recipe.name!r} (stage {stage.name!r})"
    if stage.eval_dataset is not None and not stage.scores():
        reason = (
            f"stage {stage.name!r} has no rewards to score held-out answers with, so that nothing "
            "would ever be evaluated; add rewards, or take these keys out"
        )
        for section in ("eval_dataset", "evaluation"):
            yield Unused(section, reason, refused=True)
    elif not scored:
        reason = (
            f"stage {stage.name!r} has no eval_dataset, so that nothing would ever be evaluated; "
            "add one, or take these keys out (evaluation.interval=null)"
        )
        yield Unused("evaluation", reason, refused=True)
    if not (sampled or scored):
        reason = f"does nothing: {who} samples nothing, and nothing is evaluated"
        for section in ("generator", "sampling", "environment", "transport"):
            yield Unused(section, reason)
    trainer = stage.trainer.component if stage.trainer is not None else None
    if isinstance(trainer, TrainerComponent):
        for key, takes in (("optimizer", trainer.optimizers), ("schedule", trainer.schedules)):
            if not takes:
                reason = f"trainer {trainer.name!r} (stage {stage.name!r}) takes no {key}"
                yield Unused(f"training.{key}", reason, refused=True)
    if "advantage" not in requires:
        yield Unused("advantage", f"does nothing: {who} estimates no advantages")
    if not ("rewards" in requires or scored):
        reason = f"does nothing: {who} uses no rewards, and nothing is evaluated"
        for section in ("rewards", "reward_workers"):
            yield Unused(section, reason)
    if not sampled:
        reason = f"does nothing: {who} samples nothing to train on"
        yield Unused("replay_buffer", reason)
        if scored:
            reason += ", and evaluation has its own temperature"
            yield Unused("sampling", reason, ("temperature", "top_p", "top_k"))
    held = {service.model for service in stage.services().values()}
    if stage.reference is not None:
        held.add(stage.reference_model)
    if idle := tuple(name for name in stage.models if name not in held):
        reason = "does nothing: no reference and no service of a recipe holds this model"
        yield Unused("models", reason, idle)
    if stage.generator_placement.replicas == 1:
        yield Unused("generator", "does nothing with one replica", ("routing",))
    if scored and stage.evaluation.temperature == 0:
        reason = "greedy completions (evaluation.temperature=0) of one task are all the same"
        yield Unused("evaluation", reason, ("samples",))


def _is_set(key: str, value: Provenance, stage: StageConfig) -> bool:
    """Whether somebody gave a key another value than its default."""
    section, words = section_of(key)
    rest = ".".join(words)
    if section in COMPONENT_MAPS:
        return bool(rest)
    if value.layer.startswith(BY_ITSELF):
        return False
    if not rest:
        return value.value is not None  # null: without that section
    if section in SHARED_SECTIONS:
        return bool(value.value != _default(SHARED_SECTIONS[section], rest))
    selection: Selection[Any] | None = getattr(stage, section.rpartition(".")[2], None)
    if rest == "use":
        if selection is None:
            return True
        chosen = selection.component
        return not chosen.default or (section == "transport" and selection.reach != "process")
    kernel = KERNEL_KEYS.get(section)
    if kernel is not None and rest.partition(".")[0] in kernel.model_fields:
        return bool(value.value != _default(kernel, rest))
    if selection is None:
        return False
    return bool(value.value != _default(selection.component.settings, rest))


def _default(model: type[BaseModel], key: str) -> Any:
    """A field's default as plain data; something unequal to all values where it has none."""
    name, _, inner = key.partition(".")
    field = model.model_fields.get(name)
    if field is None:
        return PydanticUndefined
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return value
    value = to_jsonable_python(value)
    for part in inner.split(".") if inner else ():
        value = value.get(part, PydanticUndefined) if isinstance(value, Mapping) else None
    return value
