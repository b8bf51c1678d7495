"""What is installed, what this machine has, and what of it stops runs. Each check is a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from forge_core.doctor import engines, machine, packages
from forge_core.doctor.finding import Finding
from forge_core.plugins.manager import PluginManager

CUDA_DRIVER = Path("/proc/driver/nvidia/version")
"""Exists where a CUDA driver is loaded."""


def examine(manager: PluginManager, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All checks, in the order of the report."""
    yield machine.python()
    yield from packages.versions()
    yield from engines.engines(has_cuda=CUDA_DRIVER.exists())
    yield from packages.unmet_requirements(plugin.distribution for plugin in manager.plugins())
    yield from packages.plugin_health(manager)
    yield from machine.processors(environ)
    if packages.installed_version("torch") is not None:
        yield from machine.torch_devices(CUDA_DRIVER)
    yield from machine.shared_memory(Path("/dev/shm"))
    yield machine.output_folder(machine.run_folders(environ))
