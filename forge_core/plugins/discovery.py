"""Installed plugins, found through their metadata alone. Nothing is imported here.

The loop is our own: one unreadable distribution costs that distribution, and a version that does
not fit is known before any of the plugin's code runs.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forge_core.version import __version__

GROUP = "forge"
KERNEL = "forge-rl-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An entry point of a distribution.

    Args:
        name: of the entry point.
        distribution: name of the distribution, as it spells it.
        version: of the distribution.
        target: what the entry point points to, such as ``acme.plugin``.
        load: imports it.
        misfit: why this kernel cannot use it; empty when it can.
        problem: what is wrong with the metadata; empty when nothing is.
    """

    name: str
    distribution: str
    version: str
    target: str
    load: Callable[[], object]
    misfit: str = ""
    problem: str = ""


def installed_plugins() -> list[Installed]:
    """Every entry point of group ``forge``, in an order that does not depend on ``sys.path``."""
    found: dict[str, list[Installed]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if GROUP not in text or not distribution.entry_points.select(group=GROUP):
                continue
            if "Name" not in distribution.metadata:
                raise ValueError("it has no name")
            name = distribution.metadata["Name"]
            if canonicalize_name(name) in found:
                continue
            # The first one on sys.path is the one whose code would be imported.
            first = importlib.metadata.distribution(name)
            found[canonicalize_name(name)] = list(_entry_points(first))
        except Exception as error:
            folder = str(getattr(distribution, "_path", distribution))
            problem = f"unreadable metadata in {folder}: {type(error).__name__}: {error}"
            found[folder] = [_unreadable(folder, problem)]
    return [entry for key in sorted(found) for entry in sorted(found[key], key=_by_name)]


def _by_name(entry: Installed) -> str:
    return entry.name


def _entry_points(distribution: importlib.metadata.Distribution) -> Iterator[Installed]:
    misfit, problem = "", ""
    try:
        misfit = _misfit(distribution.requires or ())
    except ValueError as error:
        problem = f"bad requirement in its metadata: {error}"
    for entry in distribution.entry_points.select(group=GROUP):
        yield Installed(
            name=entry.name,
            distribution=distribution.metadata["Name"],
            version=distribution.version,
            target=entry.value,
            load=entry.load,
            misfit=misfit,
            problem=problem,
        )


def _misfit(requires: list[str] | tuple[str, ...]) -> str:
    """Why this kernel does not meet the distribution's requirement on it; empty when it does.

    Raises:
        ValueError: a requirement cannot be parsed.
    """
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != KERNEL:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            return f"needs {KERNEL}{requirement.specifier}, this is {__version__}"
    return ""


def _unreadable(folder: str, problem: str) -> Installed:
    stem = folder.replace("\\", "/").rpartition("/")[2]
    name, _, version = stem.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")

    def load() -> object:
        raise ImportError(problem)

    return Installed(
        name=name, distribution=name, version=version, target="", load=load, problem=problem
    )
