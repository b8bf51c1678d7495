"""Which sections a config has; what they hold is in ``forge_core.contracts.sections``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forge_core.contracts.contributions import Section
from forge_core.contracts.sections import (
    CheckpointingSection,
    DatasetKeys,
    DistributedSection,
    EnvironmentKeys,
    EvaluationSection,
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
from forge_core.contracts.settings import Settings

SHARED_SECTIONS: dict[str, type[Settings]] = {
    "model": ModelSection,
    "models": ModelsSection,
    "training": TrainingSection,
    "distributed": DistributedSection,
    "checkpointing": CheckpointingSection,
    "sampling": SamplingSection,
    "replay_buffer": ReplayBufferSection,
    "reward_workers": RewardWorkersSection,
    "evaluation": EvaluationSection,
}
"""Section name -> model. Every stage has each of them."""

COMPONENT_SECTIONS: dict[str, str] = {
    "recipe": "recipe",
    "generator": "generator",
    "trainer": "trainer",
    "reference": "trainer",
    "loss": "loss",
    "training.optimizer": "optimizer",
    "training.schedule": "schedule",
    "advantage": "advantage",
    "environment": "environment",
    "transport": "transport",
    "runtime": "runtime",
    "dataset": "dataset",
    "eval_dataset": "dataset",
}
"""Section name -> family, for sections with one ``use:``. A dotted one stands inside another."""

NESTED: dict[str, tuple[str, ...]] = {
    outer: tuple(
        name.partition(".")[2] for name in COMPONENT_SECTIONS if name.startswith(f"{outer}.")
    )
    for outer in dict.fromkeys(name.partition(".")[0] for name in COMPONENT_SECTIONS if "." in name)
}
"""Section name -> what stands inside it and selects a component."""

COMPONENT_MAPS: dict[str, str] = {"rewards": "reward", "trackers": "tracker"}
"""Section name -> family, for sections that name several: ``{part: {use: ..., ...}}``.
``use`` may be left out where the part is called like the component."""

RUN_WIDE: frozenset[str] = frozenset({"model", "models", "checkpointing", "runtime", "trackers"})
"""Sections that belong to the whole run: a stage cannot change them."""

KERNEL_KEYS: dict[str, type[Settings]] = {
    "generator": ReplicatedKeys,
    "trainer": PlacementKeys,
    "reference": ReferenceKeys,
    "rewards": RewardKeys,
    "environment": EnvironmentKeys,
    "dataset": DatasetKeys,
    "eval_dataset": DatasetKeys,
}
"""Component section -> the kernel's own keys in it (for ``rewards``: in each part)."""

EXCLUSIVE: dict[str, tuple[str, str]] = {
    "training": ("steps", "num_epochs"),
    "model": ("path", "init"),
}
"""Section -> two keys that say one thing in two ways: setting one in a higher layer takes the place
of the other in lower layers, so that ``training.steps=5`` works over a file with ``num_epochs``."""

ALIASES: dict[str, str] = {"trainer.lr": "training.learning_rate"}
"""Another way to type a key -> the key."""


def section_of(key: str) -> tuple[str, list[str]]:
    """The section that a dotted key belongs to, and the words of the rest."""
    outer, *words = key.split(".")
    if words and words[0] in NESTED.get(outer, ()):
        return f"{outer}.{words[0]}", words[1:]
    return outer, words


@dataclass(frozen=True)
class Sections:
    """The sections of an app's configs: the kernel's, and those that its plugins add.

    Args:
        added: by name.
    """

    added: Mapping[str, Section] = field(default_factory=dict)

    def family(self, section: str) -> str | None:
        """The family of a section with one ``use:``; None for other sections."""
        return COMPONENT_SECTIONS.get(section, section if section in self.added else None)

    def keys(self, section: str) -> type[Settings] | None:
        """The kernel's own keys in a section that selects components."""
        placed = section in self.added and self.added[section].placed
        return ReplicatedKeys if placed else KERNEL_KEYS.get(section)

    def reserved_keys(self, family: str) -> frozenset[str]:
        """Keys beside a component's settings, which never reach it."""
        kernel = (self.keys(name) for name in self.of_family(family))
        fields = (keys.model_fields for keys in kernel if keys is not None)
        return frozenset({"use"}).union(*fields)

    def home(self, family: str) -> str:
        """The section in which a config has the family's default."""
        return self.of_family(family)[0]

    def of_family(self, family: str) -> list[str]:
        """The sections that select components of a family, the one with the default first."""
        known = {**COMPONENT_SECTIONS, **COMPONENT_MAPS, **dict.fromkeys(self.added)}
        return [section for section, of in known.items() if (of or section) == family]
