"""Packages and plugins: their versions, and whether they fit. Looked at through metadata alone."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Iterator, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forge_core import Finding
from forge_core.plugins.discovery import KERNEL
from forge_core.plugins.info import PluginInfo
from forge_core.plugins.manager import PluginManager
from forge_doctor.tested_versions import TESTED_VERSIONS


def installed_version(distribution: str) -> str | None:
    """Version of a distribution, or None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[Finding]:
    """Packages that the kernel was tested with, beside the versions that are here."""
    for name, tested in TESTED_VERSIONS.items():
        yield version(name, tested)


def version(name: str, tested: str) -> Finding:
    """A row with the version of a distribution that is here, and the one that was tested."""
    installed = installed_version(name)
    if installed is None:
        return Finding("ok", name, f"not installed (tested with {tested})")
    if installed.partition("+")[0] == tested:
        return Finding("ok", name, f"{installed} (tested)")
    return Finding("ok", name, f"{installed} (tested with {tested})")


def unmet_requirements(distributions: Iterator[str] | Sequence[str]) -> Iterator[Finding]:
    """What plugins ask for, extras of the kernel included, and is not there in that version."""
    reported: set[str] = set()
    for distribution in dict.fromkeys(filter(None, distributions)):
        for requirement in _unmet(distribution, extras=()):
            if str(requirement) in reported:
                continue
            reported.add(str(requirement))
            installed = installed_version(requirement.name)
            here = "it is not installed" if installed is None else f"{installed} is installed"
            wanted = f"{requirement.name}{requirement.specifier}"
            text = f"needs {wanted}; {here}"
            yield Finding("error", distribution, text, f"pip install '{wanted}'")


def _unmet(distribution: str, extras: Collection[str]) -> Iterator[Requirement]:
    try:
        lines = importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement = Requirement(line)
        # Whether the kernel fits is the plugin's health.
        is_kernel = canonicalize_name(requirement.name) == KERNEL
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        ):
            continue
        installed = installed_version(requirement.name)
        if not is_kernel and (
            installed is None or not requirement.specifier.contains(installed, prereleases=True)
        ):
            yield requirement
        elif requirement.extras:
            yield from _unmet(requirement.name, requirement.extras)


def plugin_health(manager: PluginManager) -> Iterator[Finding]:
    """Plugins with their versions, and why one cannot be used; names that are there twice."""
    for plugin in manager.plugins():
        subject = f"plugin {plugin.name}"
        if plugin.status in ("broken", "refused"):
            text = f"{plugin} is {plugin.status}: {plugin.cause}"
            yield Finding("error", subject, text, _mend_plugin(plugin))
        else:
            yield Finding("ok", subject, f"{plugin} {plugin.cause}".rstrip())
    for line in manager.catalog.conflicts():
        yield Finding("warning", "plugins", line)


def _mend_plugin(plugin: PluginInfo) -> str:
    leave_out = f"export FORGE_DISABLE_PLUGINS={plugin.name}"
    if plugin.status == "refused":
        return f"pip install --upgrade {plugin.distribution}   (or leave it out: {leave_out})"
    return leave_out
