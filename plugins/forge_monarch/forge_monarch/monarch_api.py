"""Monarch, imported with the settings that a run needs of it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING

from forge_core import PluginError
from forge_local.processes.descriptors import raise_limit
from forge_monarch.settings import TESTED, MonarchSettings, TlsFiles
from forge_monarch.tls import use

if TYPE_CHECKING:
    from forge_monarch.runtime import MonarchRuntime

TUNING = {
    # How soon a death is noticed, a storage's too. Default 10 s: too long for requests in flight.
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "500ms",
    # Bytes of the longest message. The default of 10 MB ends the client at a longer one, and
    # TorchStore's own assignment comes too late.
    "HYPERACTOR_CODEC_MAX_FRAME_LENGTH": str(1 << 40),
}
"""Variables that Monarch reads when it is imported; those that are set already are left alone."""


def import_monarch() -> None:
    """Import Monarch with ``TUNING`` in force, and let it open the descriptors that it needs.

    Raises:
        ImportError: it is not installed, or cannot be imported.
    """
    imported = "monarch" in sys.modules
    raise_limit()
    for name, value in TUNING.items():
        os.environ.setdefault(name, value)
    from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

    if imported:
        reload_config_from_env()


def load(hang_after: float, tls: TlsFiles | None = None) -> None:
    """Import Monarch for a runtime.

    Args:
        hang_after: seconds a process may be silent before it counts as hung.
        tls: certificates, for tls:// addresses.

    Raises:
        PluginError: it is not installed, or cannot be imported.
    """
    if tls is not None:
        use(tls)
    try:
        import_monarch()
        from monarch.config import configure
    except ImportError as error:
        raise PluginError(
            f"runtime 'monarch': torchmonarch cannot be imported ({error}); "
            f"pip install torchmonarch=={TESTED}"
        ) from error
    silence = f"{round(hang_after * 1000)}ms"
    configure(get_proc_state_max_idle=silence, get_actor_state_max_idle=silence)


def build(settings: MonarchSettings) -> MonarchRuntime:
    """The runtime, once Monarch is imported as the settings ask for it.

    Raises:
        PluginError: as ``load``.
    """
    load(settings.hang_after, settings.tls)
    from forge_monarch.runtime import MonarchRuntime

    return MonarchRuntime(settings)


@functools.cache
def leave_at_exit() -> None:
    """Have Monarch's client end quietly with the process; once Monarch has been used.

    Its own handler gives up after a second, and says so with a traceback.
    """
    from monarch.actor import shutdown_context

    def leave() -> None:
        with contextlib.suppress(Exception):
            shutdown_context(host_timeout=0.3).get(timeout=5.0)

    atexit.register(leave)
