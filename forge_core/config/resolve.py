"""From layers of text to one parsed config: ``resolve`` and what it returns.

Each section is parsed once, strictly, with the settings of the component it chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core.component import Placement, Selection
from forge_core.config.sections import (
    CheckpointingSection,
    DistributedSection,
    EvaluationSection,
    ModelSection,
    SamplingSection,
    TrainingSection,
)

if TYPE_CHECKING:
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


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One part of the reward.

    Args:
        selection: the reward component with its settings.
        weight: factor in the weighted sum.
        deadline: seconds until the call is killed.
        failure_reward: what an episode gets for this part when the call raised or was killed.
    """

    selection: Selection[Reward]
    weight: float = 1.0
    deadline: float = 10.0
    failure_reward: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """One stage: a recipe with everything it may use. None: not configured, or not installed."""

    name: str
    recipe: Selection[Recipe]
    generator: Selection[Generator] | None
    trainer: Selection[Trainer] | None
    loss: Selection[Loss] | None
    environment: Selection[Environment] | None
    transport: Selection[Transport] | None
    dataset: Selection[Dataset] | None
    eval_dataset: Selection[Dataset] | None
    generator_placement: Placement
    trainer_placement: Placement
    rewards: Mapping[str, RewardPart]
    model: ModelSection
    training: TrainingSection
    distributed: DistributedSection
    sampling: SamplingSection
    evaluation: EvaluationSection


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one value came from.

    Args:
        value: the value.
        layer: such as ``default``, ``recipe grpo``, ``preset quickstart``, ``environment``.
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
class RunConfig:
    """A whole config, parsed.

    Args:
        name: the ``name:`` key, else the preset or the file's stem.
        stages: in order; at least one.
        model: the weights the run starts with.
        checkpointing: shared by all stages.
        runtime: where replicas live; None when the default one is not installed.
        trackers: by part.
        tree: every effective value as plain data; it loads again as it stands.
        provenance: dotted key -> where its value came from, for every effective value. Values of
            a stage stand under ``stages.NAME.`` when the config has ``stages:``.
    """

    name: str
    stages: tuple[StageConfig, ...]
    model: ModelSection
    checkpointing: CheckpointingSection
    runtime: Selection[Runtime] | None
    trackers: Mapping[str, Selection[Tracker]]
    tree: Mapping[str, Any] = field(compare=False, repr=False)
    provenance: Mapping[str, Provenance] = field(compare=False, repr=False)

    def to_yaml(self) -> str:
        """The tree as YAML: what ``config.yaml`` of a run folder holds."""
        raise NotImplementedError


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
        PluginError: a chosen component cannot be used.
    """
    raise NotImplementedError
