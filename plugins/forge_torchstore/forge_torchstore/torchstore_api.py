"""TorchStore, imported with what it needs of Monarch, and refused where it cannot work."""

from __future__ import annotations

import inspect
import multiprocessing
from typing import TYPE_CHECKING, Any

from forge_core import BuildContext, PluginError, UsageError
from forge_monarch.monarch_api import import_monarch
from forge_torchstore.checks import INSTALL
from forge_torchstore.settings import TorchStoreSettings

if TYPE_CHECKING:
    from forge_torchstore.transport import TorchStoreTransport

CALLS = {
    "initialize": {"strategy", "store_name", "mesh"},
    "client": {"store_name"},
    "reset_client": {"store_name"},
    "shutdown": {"store_name"},
}
"""Functions of TorchStore that are used, with the arguments they are given by name."""


def load() -> Any:
    """Import Monarch and TorchStore, and patch what does not fit. Returns TorchStore.

    Raises:
        PluginError: one is not installed, or the two do not fit.
        UsageError: this process is no part of the run's Monarch world.
    """
    try:
        import_monarch()
        import torchstore
    except ImportError as error:
        raise PluginError(
            f"transport 'torchstore': cannot be imported ({error}); {INSTALL}"
        ) from error
    check_api(torchstore)
    import forge_torchstore.compat  # noqa: F401  (patches on import)

    _check_world()
    return torchstore


def build(settings: TorchStoreSettings, context: BuildContext) -> TorchStoreTransport:
    """This process's end of the transport.

    Raises:
        PluginError, UsageError: as ``load``.
    """
    load()
    from forge_torchstore.transport import TorchStoreTransport

    return TorchStoreTransport(
        context.channel,
        storage=settings.storage,
        rank=context.rank,
        world_size=context.world_size,
    )


def check_api(module: object) -> None:
    """Refuse a TorchStore without what is used of it.

    Raises:
        PluginError: names what is missing.
    """
    for name, arguments in CALLS.items():
        function = getattr(module, name, None)
        if function is None:
            raise PluginError(_misfit(f"has no {name}()"))
        missing = sorted(arguments - set(inspect.signature(function).parameters))
        if missing:
            raise PluginError(_misfit(f"{name}() takes no {', '.join(missing)}"))


def _misfit(problem: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("torchstore")
    except PackageNotFoundError:
        installed = "of unknown version"
    return f"transport 'torchstore': torchstore {installed} does not fit: {problem}; {INSTALL}"


def _check_world() -> None:
    """A child process that Monarch did not start would begin a world of its own, alone.

    Raises:
        UsageError: it is one.
    """
    from monarch._src.actor.actor_mesh import _context

    if _context.get() is None and multiprocessing.parent_process() is not None:
        raise UsageError(
            "transport 'torchstore' does not reach processes that Monarch did not start; "
            "run with --runtime monarch, or use transport 'shm'"
        )
