"""The kernel's own runtime and its settings. Imports nothing heavy."""

from __future__ import annotations

from forge_core.contracts.context import BuildContext
from forge_core.contracts.families import RuntimeComponent
from forge_core.contracts.settings import Settings


class LocalSettings(Settings):
    """Nothing to set."""


def check_local(settings: LocalSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: services want more GPUs than this host has.
    """
    from forge_core.runtimes.devices import check_devices, devices_wanted, visible_devices

    check_devices("this host", devices_wanted(context.services), len(visible_devices()))


LOCAL = RuntimeComponent(
    name="local",
    settings=LocalSettings,
    build="forge_core.runtimes.local:LocalRuntime",
    check=check_local,
    summary="replicas in this process, for one machine and for debugging",
    in_process=True,
    default=True,
)
