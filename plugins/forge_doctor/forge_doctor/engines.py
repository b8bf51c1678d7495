"""Engines that plugins drive: whether they are installed, and in the version that was tested."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forge_core import Finding
from forge_doctor.packages import installed_version

CUDA_DRIVER = Path("/proc/driver/nvidia/version")
"""Exists where a CUDA driver is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A package that a plugin drives, for a row of ``forge doctor``.

    Args:
        plugin: distribution of the plugin.
        tested: version of the engine that the plugin was tested with.
        package: distribution of the engine.
        cpu: distribution for machines without a GPU, where it is another.
        options: options that pip needs to install it.
    """

    plugin: str
    tested: str
    package: str
    cpu: str = ""
    options: str = ""

    def finding(self, *, has_cuda: bool | None = None) -> Finding:
        """The row.

        An engine that is missing, or has another version than was tested, is an error or a warning
        only where its plugin is installed and does not pin it: what plugins pin is reported as an
        unmet requirement.

        Args:
            has_cuda: whether the machine has a GPU; default: whether a CUDA driver is loaded.
        """
        has_cuda = CUDA_DRIVER.exists() if has_cuda is None else has_cuda
        builds = dict.fromkeys((self.package, self.cpu or self.package))
        here = {
            name: version for name in builds if (version := installed_version(name)) is not None
        }
        preferred = self.package if has_cuda or not self.cpu else self.cpu
        install = " ".join(f"pip install {self.options} {preferred}=={self.tested}".split())
        is_ours_to_report = installed_version(self.plugin) is not None and not self._is_pinned()
        if len(here) > 1:
            text = f"{' and '.join(here)} are both installed, over one another's files"
            fix = f"pip uninstall -y {' '.join(here)} && {install}"
            return Finding("error", preferred, text, fix)
        if not here:
            text = f"not installed (tested with {self.tested})"
            if is_ours_to_report:
                return Finding("error", preferred, f"{text}; {self.plugin} needs it", install)
            return Finding("ok", preferred, f"{text}; {install}")
        [(name, version)] = here.items()
        if version.partition("+")[0] == self.tested:
            return Finding("ok", name, f"{version} (tested)")
        text = f"{version} (tested with {self.tested})"
        if is_ours_to_report:
            return Finding("warning", name, text, install)
        return Finding("ok", name, text)

    def _is_pinned(self) -> bool:
        """Whether the plugin's own requirements name the engine, extras left out."""
        requirements = map(Requirement, importlib.metadata.requires(self.plugin) or ())
        names = {
            canonicalize_name(requirement.name)
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        }
        return bool(names & {self.package, self.cpu})
