"""What is known of each plugin, whether it could be used or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from forge_core.contracts.component import Component
from forge_core.contracts.contributions import Command, Preset

Status = Literal["ok", "broken", "refused", "blocked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin and its health.

    Args:
        name: of the entry point; of the module or class for one handed over in code.
        distribution: what was installed; empty for one handed over in code.
        version: of the distribution.
        status: ``ok``; ``broken`` (failed to import or to register); ``refused`` (built for another
            kernel version, never imported); ``blocked`` (left out on request, never imported).
        cause: why it is not ``ok``, one line.
        trace: the traceback behind the cause, where there is one.
        components: (family, name) of what it contributes. Nothing of a broken plugin can be used;
            what is known of it tells which plugin a missing component belongs to.
    """

    name: str
    distribution: str
    version: str
    status: Status
    cause: str = ""
    trace: str = ""
    components: tuple[tuple[str, str], ...] = ()

    @property
    def provider(self) -> str:
        """What stands before the colon in ``provider:component``."""
        return self.distribution or self.name

    def __str__(self) -> str:
        """For messages: the distribution with its version."""
        return f"{self.provider} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class Entry:
    """A component that can be used, and where it comes from."""

    component: Component[Any]
    provider: PluginInfo

    @property
    def name(self) -> str:
        return self.component.name


@dataclass(frozen=True, slots=True)
class PresetEntry:
    """A preset, and where it comes from."""

    preset: Preset
    provider: PluginInfo

    @property
    def name(self) -> str:
        return self.preset.name


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command, and where it comes from."""

    command: Command
    provider: PluginInfo

    @property
    def name(self) -> str:
        return self.command.name
