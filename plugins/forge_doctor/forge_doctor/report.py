"""The report: every check in its order. Each check is a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forge_core import Finding
from forge_core.contracts.blame import contained, described
from forge_core.plugins.manager import PluginManager
from forge_doctor import machine, packages
from forge_doctor.engines import CUDA_DRIVER

HOOK = "forge_health_checks"


def examine(manager: PluginManager, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All checks, in the order of the report."""
    yield machine.python()
    yield from packages.versions()
    yield from of_plugins(manager)
    yield from packages.unmet_requirements(plugin.distribution for plugin in manager.plugins())
    yield from packages.plugin_health(manager)
    yield from machine.processors(environ)
    if packages.installed_version("torch") is not None:
        yield from machine.torch_devices(CUDA_DRIVER)
    yield machine.output_folder(machine.run_folders(environ))


def of_plugins(manager: PluginManager) -> Iterator[Finding]:
    """What the plugins' own checks find. One that fails is an error, and the others go on."""
    for plugin, check in manager.implementations(HOOK):
        try:
            with contained():
                yield from _findings(check())
        except Exception as error:
            yield Finding("error", f"plugin {plugin}", f"{HOOK} failed: {described(error)}")


def _findings(rows: object) -> Iterator[Finding]:
    for row in rows:  # type: ignore[attr-defined]
        if not isinstance(row, Finding) or row.level not in ("ok", "warning", "error"):
            raise TypeError(f"it yielded {row!r}; a row is a Finding of level ok, warning or error")
        yield row
