"""From layers of text to one parsed config: ``resolve`` and what it returns.

Each section is parsed once, strictly, with the settings of the component it chose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from forge_core.config.effective import effective_tree, provenance_of
from forge_core.config.files import Files, ModelPreset
from forge_core.config.layers import MOST_PROBLEMS, Layer
from forge_core.config.parse import SectionParser
from forge_core.config.precedence import merged_sections, stage_names
from forge_core.config.sources import Arguments, Code, Defaults, Environment, Layers, Request
from forge_core.config.tree import Node, Origin, leaves, merge, plain
from forge_core.contracts.config import RewardPart, RunConfig, SectionConfig, StageConfig
from forge_core.contracts.context import Placement
from forge_core.contracts.errors import ConfigError
from forge_core.contracts.sections import (
    ArchitectureFields,
    CheckpointingSection,
    DatasetKeys,
    DistributedSection,
    EnvironmentKeys,
    EvaluationSection,
    ModelSection,
    ModelsSection,
    ReferenceKeys,
    ReplayBufferSection,
    RewardWorkersSection,
    SamplingSection,
    TrainingSection,
)
from forge_core.contracts.services import ServiceOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from forge_core.contracts.contributions import Section
    from forge_core.plugins.catalog import Catalog
    from forge_core.sections import Sections


def resolve(
    catalog: Catalog,
    source: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    environ: Mapping[str, str] | None = None,
) -> RunConfig:
    """Read all layers, merge them and parse the result.

    Args:
        catalog: the installed components and presets.
        source: preset name, YAML file, run folder, or the config itself as a mapping; None: only
            defaults.
        overrides: ``key=value`` and ``~key`` as typed on the command line, or a mapping (nested,
            or with dotted keys).
        environ: default ``os.environ``.

    Raises:
        ConfigError: everything that is wrong with the config, one line for each problem.
        PluginError: a plugin contributes a model preset or defaults that cannot be used.
    """
    request = Request(catalog, source, overrides, os.environ if environ is None else environ)
    kinds = catalog.sections
    typed = Code if isinstance(overrides, Mapping) else Arguments
    sources = [kind(request) for kind in (typed, Environment, Files, ModelPreset, Defaults)]
    layers = Layers(_build_sources=(tuple(sources), {}))
    problems = [line for one in reversed(sources) for line in one.problems]

    def parser(stage: str | None, problems_of_merge: list[str]) -> SectionParser:
        merged = merged_sections(layers.of(stage), stage, problems_of_merge, kinds)
        builtin = merged_sections(layers.builtin(stage), None, [], kinds)
        return SectionParser(catalog, merged, builtin, problems)

    names: list[str | None] = [*stage_names(layers.of(None), problems)] or [None]
    stages = [parser(stage, problems) for stage in names]
    run = parser(None, [])
    _check_removals([run.merged, *(stage.merged for stage in stages)], problems)
    config = _parse(_name(layers.of(None)), run, names, stages, kinds)
    if problems:
        lines = list(dict.fromkeys(problems))
        more = len(lines) - MOST_PROBLEMS
        raise ConfigError(
            [*lines[:MOST_PROBLEMS], f"and {more:,} more problems"] if more > 0 else lines
        )
    assert config is not None
    return config


def _name(layers: Sequence[Layer]) -> Node:
    names: list[Node] = [layer.name for layer in layers if layer.name is not None]
    return reduce(merge, names)


def _check_removals(merged: Sequence[Mapping[str, Node]], problems: list[str]) -> None:
    """A ``~key`` that removed nothing anywhere is a mistake."""
    effect: dict[Origin, bool] = {}
    for sections in merged:
        for node in sections.values():
            for leaf in leaves(node):
                if leaf.unset:
                    effect[leaf.origin] = effect.get(leaf.origin, False) or bool(leaf.overrode)
    problems.extend(
        f"{origin.where}: nothing to remove: no lower layer sets {origin.key}"
        for origin, removed in effect.items()
        if not removed
    )


def _parse(
    name: Node,
    run: SectionParser,
    names: Sequence[str | None],
    stages: Sequence[SectionParser],
    kinds: Sections,
) -> RunConfig | None:
    """Everything parsed; None after a problem without which there is no config to speak of."""
    model = run.shared("model", ModelSection)
    run.check_table("model", ("init", "config"), ArchitectureFields)
    models = run.shared("models", ModelsSection).named()
    for each in models:
        run.check_table("models", (each, "init", "config"), ArchitectureFields)
    checkpointing = run.shared("checkpointing", CheckpointingSection)
    runtime = run.required("runtime")
    trackers = {part: selection for part, (selection, _) in run.parts("trackers").items()}
    parsed = [
        _parse_stage(stage, parser, model, models, kinds)
        for stage, parser in zip(names, stages, strict=True)
    ]
    complete = tuple(stage for stage in parsed if stage is not None)
    if runtime is None or len(complete) < len(parsed):
        return None
    run_name = plain(name)
    provenance = dict(
        provenance_of("", {"name": run_name, **run.effective}, {"name": name, **run.merged})
    )
    for stage, parser in zip(names, stages, strict=True):
        prefix = f"stages.{stage}." if stage is not None else ""
        provenance.update(provenance_of(prefix, parser.effective, parser.merged))
    return RunConfig(
        name=run_name,
        stages=complete,
        model=model,
        models=models,
        checkpointing=checkpointing,
        runtime=runtime,
        trackers=trackers,
        tree=effective_tree(
            run_name,
            run.effective,
            [(stage, parser.effective) for stage, parser in zip(names, stages, strict=True)],
        ),
        provenance=provenance,
    )


def _parse_stage(
    name: str | None,
    parser: SectionParser,
    model: ModelSection,
    models: Mapping[str, ModelSection],
    kinds: Sections,
) -> StageConfig | None:
    recipe = parser.required("recipe")
    generator, generator_keys = parser.component_and_keys("generator")
    trainer, trainer_keys = parser.component_and_keys("trainer")
    reference, reference_keys = parser.component_and_keys("reference")
    loss, transport = parser.component("loss"), parser.component("transport")
    optimizer = parser.component("training.optimizer")
    schedule = parser.component("training.schedule")
    advantage = parser.component("advantage")
    environment, environment_keys = parser.component_and_keys("environment")
    dataset, dataset_keys = parser.component_and_keys("dataset")
    eval_dataset, eval_dataset_keys = parser.component_and_keys("eval_dataset")
    assert isinstance(environment_keys, EnvironmentKeys)
    assert isinstance(reference_keys, ReferenceKeys)
    assert isinstance(dataset_keys, DatasetKeys)
    assert isinstance(eval_dataset_keys, DatasetKeys)
    rewards = {
        part: RewardPart(selection=selection, **(dict(keys) if keys is not None else {}))
        for part, (selection, keys) in parser.parts("rewards").items()
    }
    reward_workers = parser.shared("reward_workers", RewardWorkersSection)
    training = parser.shared("training", TrainingSection)
    distributed = parser.shared("distributed", DistributedSection)
    sampling = parser.shared("sampling", SamplingSection)
    evaluation = parser.shared("evaluation", EvaluationSection)
    added = {name: _added(section, parser) for name, section in kinds.added.items()}
    if recipe is None:
        return None
    return StageConfig(
        name=name if name is not None else recipe.name,
        recipe=recipe,
        generator=generator,
        trainer=trainer,
        reference=reference,
        loss=loss,
        optimizer=optimizer,
        schedule=schedule,
        advantage=advantage,
        transport=transport,
        environment=environment,
        environment_keys=environment_keys,
        dataset=dataset,
        dataset_keys=dataset_keys,
        eval_dataset=eval_dataset,
        eval_dataset_keys=eval_dataset_keys,
        generator_placement=_placement(generator_keys),
        generator_options=ServiceOptions(**_fields_of(ServiceOptions, generator_keys)),
        trainer_placement=_placement(trainer_keys),
        reference_placement=_placement(reference_keys),
        reference_model=reference_keys.model,
        replay_buffer_placement=_placement(parser.shared("replay_buffer", ReplayBufferSection)),
        rewards=rewards,
        reward_placement=_placement(reward_workers),
        reward_workers=reward_workers,
        model=model,
        models=models,
        training=training,
        distributed=distributed,
        sampling=sampling,
        evaluation=evaluation,
        sections=added,
    )


def _added(section: Section, parser: SectionParser) -> SectionConfig:
    """What the config says in a section that a plugin has added."""
    selection, keys = parser.component_and_keys(section.name)
    return SectionConfig(
        section=section,
        selection=selection,
        placement=_placement(keys),
        options=ServiceOptions(**_fields_of(ServiceOptions, keys)),
    )


def _placement(keys: BaseModel | None) -> Placement:
    return Placement(**_fields_of(Placement, keys))


def _fields_of(dataclass: type[DataclassInstance], keys: BaseModel | None) -> dict[str, Any]:
    """Those of the kernel's keys that a dataclass takes."""
    names = {field.name for field in fields(dataclass)}
    return {name: value for name, value in (keys or ()) if name in names}
