"""From layers of text to one parsed config: ``resolve`` and what it returns.

Each section is parsed once, strictly, with the settings of the component it chose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from forge_core.component import Placement, Selection
from forge_core.config.effective import Provenance, effective_tree, provenance_of, to_yaml
from forge_core.config.layers import Layer, default_layer, layout_layer, recipe_layer
from forge_core.config.layout import layout_defaults
from forge_core.config.parse import SectionParser
from forge_core.config.precedence import component_name, merged_sections, stage_names
from forge_core.config.sections import (
    CheckpointingSection,
    DistributedSection,
    EvaluationSection,
    ModelSection,
    ReplayBufferSection,
    RewardWorkersSection,
    SamplingSection,
    TrainingSection,
)
from forge_core.config.sources import (
    environment_layer,
    model_layers,
    override_layer,
    source_layers,
)
from forge_core.config.tree import Leaf, Node, Origin, Table, leaves, merge, plain
from forge_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from forge_core.plugins.catalog import Catalog
    from forge_core.protocols import (
        Dataset,
        Environment,
        Generator,
        Loss,
        Recipe,
        Reward,
        Runtime,
        Tracker,
        Trainer,
        Transport,
    )
    from forge_core.services.options import ServiceOptions


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One part of the reward.

    Args:
        selection: the reward component with its settings.
        weight: factor in the weighted sum.
        deadline: seconds until the call is killed.
        failure_reward: what an episode gets for this part when the call raised or was killed; None
            leaves the episode out.
    """

    selection: Selection[Reward]
    weight: float = 1.0
    deadline: float = 10.0
    failure_reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """One stage: a recipe with everything it may use.

    A component is None when the config chooses none, and also when only the default was chosen and
    it is not installed: whoever needs it says so.
    """

    name: str
    recipe: Selection[Recipe]
    generator: Selection[Generator] | None
    trainer: Selection[Trainer] | None
    reference: Selection[Trainer] | None
    loss: Selection[Loss] | None
    environment: Selection[Environment] | None
    transport: Selection[Transport] | None
    dataset: Selection[Dataset] | None
    eval_dataset: Selection[Dataset] | None
    generator_placement: Placement
    generator_options: ServiceOptions
    trainer_placement: Placement
    reference_placement: Placement
    replay_buffer_placement: Placement
    rewards: Mapping[str, RewardPart]
    reward_placement: Placement
    model: ModelSection
    training: TrainingSection
    distributed: DistributedSection
    sampling: SamplingSection
    evaluation: EvaluationSection


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole config, parsed.

    Args:
        name: the ``name:`` key, else the preset or the file's stem.
        stages: in order; at least one.
        model: the weights the run starts with.
        checkpointing: shared by all stages.
        runtime: where replicas live.
        trackers: by part.
        tree: every effective value as plain data; it loads again as it stands.
        provenance: dotted key -> where its value came from, for every effective value. Values of
            a stage stand under ``stages.NAME.`` when the config has ``stages:``.
    """

    name: str
    stages: tuple[StageConfig, ...]
    model: ModelSection
    checkpointing: CheckpointingSection
    runtime: Selection[Runtime]
    trackers: Mapping[str, Selection[Tracker]]
    tree: Mapping[str, Any] = field(compare=False, repr=False)
    provenance: Mapping[str, Provenance] = field(compare=False, repr=False)

    def to_yaml(self) -> str:
        """The tree as YAML: what ``config.yaml`` of a run folder holds."""
        return to_yaml(self.tree)


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
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    stem, below = source_layers(catalog, source, environ, problems)
    above = [environment_layer(environ, problems), override_layer(overrides, environ, problems)]
    default = default_layer()
    model = model_layers(catalog, _model_name([default, *below, *above]), environ, problems)
    builtin, layers = [default, *model], [default, *model, *below, *above]
    names: list[str | None] = [*stage_names(layers, problems)] or [None]
    stages = [_stage_parser(catalog, builtin, layers, stage, problems) for stage in names]
    run = SectionParser(
        catalog,
        merged_sections(layers, None, []),
        merged_sections(builtin, None, []),
        problems,
    )
    _check_removals([run.merged, *(stage.merged for stage in stages)], problems)
    config = _parse(_name(stem, layers), run, names, stages)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    assert config is not None
    return config


def _name(stem: str, layers: Sequence[Layer]) -> Node:
    name: Node = Leaf(stem, stem, Origin("default", "", "name"))
    for layer in layers:
        name = merge(name, layer.name) if layer.name is not None else name
    return name


def _model_name(layers: Sequence[Layer]) -> str:
    """``model.name`` as far as it is known before the model preset, which it chooses."""
    model = merged_sections(layers, None, []).get("model")
    name = model.items.get("name") if isinstance(model, Table) else None
    return name.value if isinstance(name, Leaf) and isinstance(name.value, str) else ""


def _stage_parser(
    catalog: Catalog,
    builtin: Sequence[Layer],
    layers: Sequence[Layer],
    stage: str | None,
    problems: list[str],
) -> SectionParser:
    """The stage's sections over the defaults that its recipe and its layout have for them."""
    sections = merged_sections(layers, stage, [])
    recipe = sections.get("recipe")
    extra: list[Layer] = [layout_layer(layout_defaults(catalog, sections))]
    if isinstance(recipe, Table):
        try:
            component = catalog.get("recipe", component_name(recipe) or "")
        except PluginError:
            pass  # parsing the recipe's section reports it
        else:
            defaults = getattr(component.settings, "section_defaults", {})
            extra.append(recipe_layer(component.name, defaults))
    default, *rest = layers
    return SectionParser(
        catalog,
        merged_sections([default, *extra, *rest], stage, problems),
        merged_sections([builtin[0], *extra, *builtin[1:]], None, []),
        problems,
    )


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
    name: Node, run: SectionParser, names: Sequence[str | None], stages: Sequence[SectionParser]
) -> RunConfig | None:
    """Everything parsed; None after a problem without which there is no config to speak of."""
    model = run.shared("model", ModelSection)
    checkpointing = run.shared("checkpointing", CheckpointingSection)
    runtime = run.required("runtime")
    trackers = {part: selection for part, (selection, _) in run.parts("trackers").items()}
    parsed = [
        _parse_stage(stage, parser, model) for stage, parser in zip(names, stages, strict=True)
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
    name: str | None, parser: SectionParser, model: ModelSection
) -> StageConfig | None:
    # Here, because the package imports asyncio, which is slow and of no use to most commands.
    from forge_core.services.options import ServiceOptions

    recipe = parser.required("recipe")
    generator, generator_keys = parser.component_and_keys("generator")
    trainer, trainer_keys = parser.component_and_keys("trainer")
    reference, reference_keys = parser.component_and_keys("reference")
    sections = {
        section: parser.component(section)
        for section in ("loss", "environment", "transport", "dataset", "eval_dataset")
    }
    rewards = {
        part: RewardPart(selection=selection, **(dict(keys) if keys is not None else {}))
        for part, (selection, keys) in parser.parts("rewards").items()
    }
    reward_workers = parser.shared("reward_workers", RewardWorkersSection)
    training = parser.shared("training", TrainingSection)
    distributed = parser.shared("distributed", DistributedSection)
    sampling = parser.shared("sampling", SamplingSection)
    evaluation = parser.shared("evaluation", EvaluationSection)
    if recipe is None:
        return None
    return StageConfig(
        name=name if name is not None else recipe.name,
        recipe=recipe,
        generator=generator,
        trainer=trainer,
        reference=reference,
        **sections,
        generator_placement=_placement(generator_keys),
        generator_options=ServiceOptions(**_fields_of(ServiceOptions, generator_keys)),
        trainer_placement=_placement(trainer_keys),
        reference_placement=_placement(reference_keys),
        replay_buffer_placement=_placement(parser.shared("replay_buffer", ReplayBufferSection)),
        rewards=rewards,
        reward_placement=_placement(reward_workers),
        model=model,
        training=training,
        distributed=distributed,
        sampling=sampling,
        evaluation=evaluation,
    )


def _placement(keys: BaseModel | None) -> Placement:
    return Placement(**_fields_of(Placement, keys))


def _fields_of(dataclass: type[DataclassInstance], keys: BaseModel | None) -> dict[str, Any]:
    """Those of the kernel's keys that a dataclass takes."""
    names = {field.name for field in fields(dataclass)}
    return {name: value for name, value in (keys or ()) if name in names}
