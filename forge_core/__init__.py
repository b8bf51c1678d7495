"""Forge's kernel: what generators, trainers, losses, rewards, environments and transports are.

Everything a plugin needs is importable from here; nothing heavy is imported by it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_core.app import Forge
    from forge_core.contracts.arrays import (
        BoolArray,
        FloatArray,
        IntArray,
    )
    from forge_core.contracts.component import Component
    from forge_core.contracts.config import (
        Provenance,
        RewardPart,
        RunConfig,
        SectionConfig,
        StageConfig,
    )
    from forge_core.contracts.context import BuildContext, Placement
    from forge_core.contracts.contributions import Command, ModelMaker, Preset, Section
    from forge_core.contracts.errors import (
        ConfigError,
        DataError,
        EpisodeFailed,
        Escaped,
        FanoutError,
        ForgeError,
        Interrupted,
        NoRoom,
        PluginError,
        PromptRefused,
        ReplicaDied,
        RunFailed,
        RunInterrupted,
        RunStopped,
        UsageError,
        WeightMismatch,
        WeightsNotFinite,
        WriterLost,
    )
    from forge_core.contracts.families import (
        Cautions,
        CheckTasks,
        DatasetComponent,
        EnvironmentComponent,
        GeneratorComponent,
        Location,
        LossComponent,
        Reach,
        RecipeComponent,
        RewardComponent,
        RuntimeComponent,
        TokenLimit,
        TrackerComponent,
        TrainerComponent,
        TransportComponent,
    )
    from forge_core.contracts.health import (
        Finding,
    )
    from forge_core.contracts.hookspecs import (
        hookimpl,
        hookspec,
    )
    from forge_core.contracts.loss import (
        OUTPUTS,
        LossBatch,
        LossOutput,
        ModelOutputs,
        OutputNeeds,
        TopLogprobs,
        field_needs,
    )
    from forge_core.contracts.memory import (
        Checkpointing,
        Memory,
        ModelShape,
        Workload,
    )
    from forge_core.contracts.protocols import (
        AnyReward,
        BatchReward,
        ChunkedLoss,
        Dataset,
        Environment,
        Generator,
        GroupReward,
        Interaction,
        Loss,
        Recipe,
        Replica,
        Reward,
        RewardValue,
        Runtime,
        ServingGenerator,
        StreamingGenerator,
        Tracker,
        Trainer,
        Transport,
        ValueTrainer,
    )
    from forge_core.contracts.recipe import (
        RecipeContext,
        Rollout,
        RolloutOptions,
        RolloutSource,
        ServiceHandle,
        ServiceMethod,
        steps_for,
    )
    from forge_core.contracts.records import (
        Evaluation,
        Event,
        Outcome,
        RunInfo,
        StageInfo,
        StepRecord,
        Summary,
    )
    from forge_core.contracts.runner import PreparedRun, Runner
    from forge_core.contracts.sections import (
        ArchitectureFields,
        CheckpointingSection,
        DatasetKeys,
        DistributedSection,
        EnvironmentKeys,
        EvaluationSection,
        ModelInit,
        ModelSection,
        ModelsSection,
        PlacementKeys,
        ReferenceKeys,
        ReplayBufferSection,
        ReplicatedKeys,
        RewardKeys,
        RewardWorkersSection,
        SamplingSection,
        TrainingSection,
    )
    from forge_core.contracts.seeding import (
        derive_seed,
    )
    from forge_core.contracts.selection import Selection
    from forge_core.contracts.services import (
        RecipeService,
        ReplicaSpec,
        RoutingName,
        ServiceOptions,
    )
    from forge_core.contracts.settings import (
        InputPath,
        Settings,
    )
    from forge_core.contracts.step import (
        Step,
    )
    from forge_core.contracts.types import (
        Completion,
        CompletionPart,
        Episode,
        FinishReason,
        Group,
        Message,
        Prompt,
        Response,
        RewardResult,
        RewardSample,
        Role,
        Sampling,
        StepResult,
        Task,
        TrainSequence,
        Turn,
        WeightManifest,
    )
    from forge_core.version import __version__

__all__ = [
    "OUTPUTS",
    "AnyReward",
    "ArchitectureFields",
    "BatchReward",
    "BoolArray",
    "BuildContext",
    "Cautions",
    "CheckTasks",
    "Checkpointing",
    "CheckpointingSection",
    "ChunkedLoss",
    "Command",
    "Completion",
    "CompletionPart",
    "Component",
    "ConfigError",
    "DataError",
    "Dataset",
    "DatasetComponent",
    "DatasetKeys",
    "DistributedSection",
    "Environment",
    "EnvironmentComponent",
    "EnvironmentKeys",
    "Episode",
    "EpisodeFailed",
    "Escaped",
    "Evaluation",
    "EvaluationSection",
    "Event",
    "FanoutError",
    "Finding",
    "FinishReason",
    "FloatArray",
    "Forge",
    "ForgeError",
    "Generator",
    "GeneratorComponent",
    "Group",
    "GroupReward",
    "InputPath",
    "IntArray",
    "Interaction",
    "Interrupted",
    "Location",
    "Loss",
    "LossBatch",
    "LossComponent",
    "LossOutput",
    "Memory",
    "Message",
    "ModelInit",
    "ModelMaker",
    "ModelOutputs",
    "ModelSection",
    "ModelShape",
    "ModelsSection",
    "NoRoom",
    "Outcome",
    "OutputNeeds",
    "Placement",
    "PlacementKeys",
    "PluginError",
    "PreparedRun",
    "Preset",
    "Prompt",
    "PromptRefused",
    "Provenance",
    "Reach",
    "Recipe",
    "RecipeComponent",
    "RecipeContext",
    "RecipeService",
    "ReferenceKeys",
    "ReplayBufferSection",
    "Replica",
    "ReplicaDied",
    "ReplicaSpec",
    "ReplicatedKeys",
    "Response",
    "Reward",
    "RewardComponent",
    "RewardKeys",
    "RewardPart",
    "RewardResult",
    "RewardSample",
    "RewardValue",
    "RewardWorkersSection",
    "Role",
    "Rollout",
    "RolloutOptions",
    "RolloutSource",
    "RoutingName",
    "RunConfig",
    "RunFailed",
    "RunInfo",
    "RunInterrupted",
    "RunStopped",
    "Runner",
    "Runtime",
    "RuntimeComponent",
    "Sampling",
    "SamplingSection",
    "Section",
    "SectionConfig",
    "Selection",
    "ServiceHandle",
    "ServiceMethod",
    "ServiceOptions",
    "ServingGenerator",
    "Settings",
    "StageConfig",
    "StageInfo",
    "Step",
    "StepRecord",
    "StepResult",
    "StreamingGenerator",
    "Summary",
    "Task",
    "TokenLimit",
    "TopLogprobs",
    "Tracker",
    "TrackerComponent",
    "TrainSequence",
    "Trainer",
    "TrainerComponent",
    "TrainingSection",
    "Transport",
    "TransportComponent",
    "Turn",
    "UsageError",
    "ValueTrainer",
    "WeightManifest",
    "WeightMismatch",
    "WeightsNotFinite",
    "Workload",
    "WriterLost",
    "__version__",
    "derive_seed",
    "field_needs",
    "hookimpl",
    "hookspec",
    "steps_for",
]

_MODULES = (
    "version",
    "contracts.errors",
    "contracts.types",
    "contracts.seeding",
    "contracts.records",
    "contracts.health",
    "contracts.memory",
    "contracts.loss",
    "contracts.hookspecs",
    "contracts.settings",
    "contracts.component",
    "contracts.contributions",
    "contracts.runner",
    "contracts.context",
    "contracts.families",
    "contracts.selection",
    "contracts.services",
    "contracts.sections",
    "contracts.protocols",
    "contracts.step",
    "contracts.config",
    "contracts.recipe",
    "app",
    "contracts.arrays",
)
"""Where the names are, the lightest first: a module is imported to look a name up."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: ``forge`` answers ctrl-C before pydantic is there."""
    if name in __all__:
        for module in _MODULES:
            value = getattr(importlib.import_module(f"forge_core.{module}"), name, None)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
