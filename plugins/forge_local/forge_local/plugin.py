"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import RuntimeComponent, hookimpl
from forge_local.checks import check_local
from forge_local.settings import LocalSettings


@hookimpl
def forge_runtimes() -> Iterable[RuntimeComponent]:
    yield RuntimeComponent(
        name="local",
        settings=LocalSettings,
        build="forge_local.runtime:LocalRuntime",
        check=check_local,
        summary="replicas in this process, for one machine and for debugging",
        in_process=True,
        default=True,
    )
