"""A config after all its layers were merged and parsed: what a run does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from forge_core.contracts.blame import blaming, title
from forge_core.contracts.context import BuildContext, Placement
from forge_core.contracts.errors import PluginError
from forge_core.contracts.families import EnvironmentComponent
from forge_core.contracts.seeding import derive_seed
from forge_core.contracts.selection import Selection
from forge_core.contracts.services import RecipeService

if TYPE_CHECKING:
    from forge_core.contracts.contributions import Section
    from forge_core.contracts.protocols import (
        AdvantageEstimator,
        AnyReward,
        Dataset,
        Environment,
        Generator,
        Loss,
        OptimizerFactory,
        Recipe,
        Runtime,
        Schedule,
        Tracker,
        Trainer,
        Transport,
    )
    from forge_core.contracts.sections import (
        CheckpointingSection,
        DatasetKeys,
        DistributedSection,
        EnvironmentKeys,
        EvaluationSection,
        ModelSection,
        RewardWorkersSection,
        SamplingSection,
        TrainingSection,
    )
    from forge_core.contracts.selection import Selection
    from forge_core.contracts.services import ServiceOptions


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one value came from.

    Args:
        value: the value.
        layer: such as ``default``, ``recipe mine``, ``preset mine``, ``environment``.
        where: file:line, the variable, or the argument as typed; empty for a field's default.
        key: the key as it was typed.
        overrode: what lower layers had said, highest first.
    """

    value: Any
    layer: str
    where: str
    key: str
    overrode: tuple[Provenance, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One part of the reward.

    Args:
        selection: the reward component with its settings.
        weight: factor in the weighted sum.
        deadline: seconds until the call is killed.
        concurrency: calls of an ``async`` reward that a worker has under way at once.
        failure_reward: what an episode gets for this part when the call raised or was killed; None
            leaves the episode out.
    """

    selection: Selection[AnyReward]
    weight: float = 1.0
    deadline: float = 10.0
    concurrency: int = 64
    failure_reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class SectionConfig:
    """A section that a plugin has added (hook ``forge_sections``).

    Args:
        section: what the plugin says of it.
        selection: the component with its settings; None where the config chooses none.
        placement: of its replicas, where it has some.
        options: of their service.
    """

    section: Section
    selection: Selection[Any] | None
    placement: Placement
    options: ServiceOptions


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """One stage: a recipe with everything it may use.

    A component is None when the config chooses none, and also when only the default was chosen and
    it is not installed; what needs it raises.
    """

    name: str
    recipe: Selection[Recipe]
    generator: Selection[Generator] | None
    trainer: Selection[Trainer] | None
    reference: Selection[Trainer] | None
    loss: Selection[Loss] | None
    optimizer: Selection[OptimizerFactory] | None
    schedule: Selection[Schedule] | None
    advantage: Selection[AdvantageEstimator] | None
    environment: Selection[Environment] | None
    environment_keys: EnvironmentKeys
    transport: Selection[Transport] | None
    dataset: Selection[Dataset] | None
    eval_dataset: Selection[Dataset] | None
    dataset_keys: DatasetKeys
    eval_dataset_keys: DatasetKeys
    generator_placement: Placement
    generator_options: ServiceOptions
    trainer_placement: Placement
    reference_placement: Placement
    reference_model: str
    """Name of the model that the reference holds; empty: what the stage began with."""
    replay_buffer_placement: Placement
    rewards: Mapping[str, RewardPart]
    reward_placement: Placement
    reward_workers: RewardWorkersSection
    model: ModelSection
    models: Mapping[str, ModelSection]
    """Further models of the run, by name."""
    training: TrainingSection
    distributed: DistributedSection
    sampling: SamplingSection
    evaluation: EvaluationSection
    sections: Mapping[str, SectionConfig] = field(default_factory=dict)
    """Those that plugins have added, by name."""

    def early_context(self) -> BuildContext:
        """What is known before the stage's model is: enough for recipes, losses and datasets."""
        return BuildContext(
            model=self.model,
            training=self.training,
            distributed=self.distributed,
            optimizer=self.optimizer,
            schedule=self.schedule,
            seed=derive_seed(self.training.seed, "stage", self.name),
        )

    def placements(self) -> dict[str, Placement]:
        """Service -> where its replicas go, for each that the stage has on the run's runtime.

        Sections that plugins add are services where the plugin says so, and the recipe may have
        services of its own. Rewards and the replay
        buffer are there only if their sections say so; else they live in the controller's process,
        whatever the runtime.
        """
        judges, buffer = self.reward_placement, self.replay_buffer_placement
        judged = bool(self.rewards) and (judges.own_processes or judges.replicas > 1)
        there = {
            "trainer": (self.trainer_placement, self.trainer is not None),
            "generator": (self.generator_placement, self.generator is not None),
            "reference": (self.reference_placement, self.reference is not None),
            "rewards": (judges, judged),
            "replay_buffer": (buffer, buffer.own_processes),
        }
        for name, service in self.services().items():
            there[name] = (self.service_placement(service), True)
        for name, added in self.sections.items():
            there[name] = (added.placement, added.section.placed and added.selection is not None)
        return {service: placement for service, (placement, used) in there.items() if used}

    def services(self) -> Mapping[str, RecipeService]:
        """Services that the recipe has of its own, by name.

        Raises:
            PluginError: the recipe declares something else.
        """
        with blaming(self.recipe, "build"):
            recipe = self.recipe.build(self.early_context())
        declare = getattr(recipe, "services", None)
        if declare is None:
            return {}
        with blaming(self.recipe, "services"):
            declared = declare(self)
        if not isinstance(declared, Mapping) or not all(
            isinstance(service, RecipeService) for service in declared.values()
        ):
            raise PluginError(
                f"{title(self.recipe)}: services returned {declared!r}; it must return a dict of "
                "name -> forge_core.RecipeService"
            )
        return declared

    def service_selection(self, service: RecipeService) -> Selection[Any] | None:
        """The component of a recipe's service; None where the config chooses none."""
        if service.selection is not None:
            return service.selection
        if service.section in self.sections:
            return self.sections[service.section].selection
        chosen: Selection[Any] | None = getattr(self, service.section, None)
        return chosen

    def service_placement(self, service: RecipeService) -> Placement:
        """Where the replicas of a recipe's service go."""
        if service.placement is not None:
            return service.placement
        if service.section in self.sections:
            return self.sections[service.section].placement
        placement: Placement = getattr(self, f"{service.section}_placement", Placement())
        return placement

    def selections(self) -> Iterator[Selection[Any]]:
        """Every component that the stage's config chooses, whether the recipe uses it or not."""
        for each in fields(self):
            value = getattr(self, each.name)
            for one in value.values() if isinstance(value, Mapping) else (value,):
                chosen = one if isinstance(one, Selection) else getattr(one, "selection", None)
                if isinstance(chosen, Selection):
                    yield chosen

    def evaluates(self) -> bool:
        """Whether the stage's policy is scored on held-out tasks."""
        return self.eval_dataset is not None and self.scores()

    def scores(self) -> bool:
        """Whether episodes get a reward, from ``rewards`` or from the environment itself."""
        component = self.environment.component if self.environment is not None else None
        given = isinstance(component, EnvironmentComponent) and component.gives_rewards
        return bool(self.rewards) or given

    def samples(self) -> bool:
        """Whether the stage uses its generator, to train on what it samples or to evaluate."""
        return "generator" in self.recipe.requires or self.evaluates()


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole config, parsed.

    Args:
        name: the ``name:`` key, else the preset or the file's stem.
        stages: in order; at least one.
        model: the weights the run starts with.
        models: further models, by name.
        checkpointing: shared by all stages.
        runtime: where replicas live.
        trackers: by part.
        tree: every effective value as plain data; it loads again as it stands.
        provenance: dotted key -> where its value came from, for every effective value. Values of
            a stage are under ``stages.NAME.`` when the config has ``stages:``.
    """

    name: str
    stages: tuple[StageConfig, ...]
    model: ModelSection
    models: Mapping[str, ModelSection]
    checkpointing: CheckpointingSection
    runtime: Selection[Runtime]
    trackers: Mapping[str, Selection[Tracker]]
    tree: Mapping[str, Any] = field(compare=False, repr=False)
    provenance: Mapping[str, Provenance] = field(compare=False, repr=False)

    def selections(self) -> Iterator[Selection[Any]]:
        """Every component that the config chooses."""
        yield self.runtime
        yield from self.trackers.values()
        for stage in self.stages:
            yield from stage.selections()

    def presets(self) -> set[tuple[str, str]]:
        """(kind, name) of the presets that gave the config a value, overridden or not."""
        layers = {said.layer for value in self.provenance.values() for said in _said(value)}
        return {
            (kind, layer.removeprefix(prefix))
            for layer in layers
            for kind, prefix in (("run", "preset "), ("model", "model preset "))
            if layer.startswith(prefix)
        }


def _said(value: Provenance) -> Iterator[Provenance]:
    """A value with those that it overrode."""
    yield value
    for below in value.overrode:
        yield from _said(below)
