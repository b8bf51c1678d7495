"""Forge's kernel: what generators, trainers, losses, rewards, environments and transports are.

Everything a plugin needs is importable from here; nothing heavy is imported by it.
"""

from forge_core.app import Forge
from forge_core.component import (
    BuildContext,
    Component,
    Limits,
    Location,
    ModelMaker,
    Placement,
    Preset,
    Selection,
    Settings,
)
from forge_core.errors import (
    ConfigError,
    DataError,
    FanoutError,
    ForgeError,
    NoRoom,
    PluginError,
    PromptRefused,
    ReplicaDied,
    RunFailed,
    RunInterrupted,
    RunStopped,
    UsageError,
    WeightMismatch,
)
from forge_core.hookspecs import hookimpl, hookspec
from forge_core.types import (
    Completion,
    CompletionPart,
    Episode,
    Group,
    Message,
    RewardSample,
    Sampling,
    StepResult,
    Task,
    TrainSequence,
    Turn,
    WeightManifest,
)
from forge_core.version import __version__

__all__ = [
    "BuildContext",
    "Completion",
    "CompletionPart",
    "Component",
    "ConfigError",
    "DataError",
    "Episode",
    "FanoutError",
    "Forge",
    "ForgeError",
    "Group",
    "Limits",
    "Location",
    "Message",
    "ModelMaker",
    "NoRoom",
    "Placement",
    "PluginError",
    "Preset",
    "PromptRefused",
    "ReplicaDied",
    "RewardSample",
    "RunFailed",
    "RunInterrupted",
    "RunStopped",
    "Sampling",
    "Selection",
    "Settings",
    "StepResult",
    "Task",
    "TrainSequence",
    "Turn",
    "UsageError",
    "WeightManifest",
    "WeightMismatch",
    "__version__",
    "hookimpl",
    "hookspec",
]
