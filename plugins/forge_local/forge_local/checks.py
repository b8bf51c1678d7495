"""What runtime ``local`` refuses before anything starts. Imports nothing heavy."""

from __future__ import annotations

from forge_core import BuildContext
from forge_local.settings import LocalSettings


def check_local(settings: LocalSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: services want more GPUs than this host has.
    """
    from forge_local.devices import check_devices, devices_wanted, visible_devices

    check_devices("this host", devices_wanted(context.services), len(visible_devices()))
