"""Installed distributions that a test makes up: real ``.dist-info`` folders beside real modules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent


class FakeSite:
    """A folder like ``site-packages``. Calling it installs a distribution there.

    Args:
        folder: must be on ``sys.path`` for the distributions to be found in this process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        name: str,
        source: str,
        *,
        version: str = "1.0",
        requires: Sequence[str] = ("forge-rl-core",),
        entry_points: Mapping[str, str] | None = None,
    ) -> Path:
        """Install a distribution of one module, named like it with ``_`` for ``-``.

        Args:
            name: of the distribution.
            source: the module's code, indented as you like.
            version: of the distribution.
            requires: its ``Requires-Dist`` lines.
            entry_points: name -> target in group ``forge``; default: the module, under its name.

        Returns:
            The module's file.
        """
        module = re.sub(r"[-.]+", "_", name)
        file = self.folder / f"{module}.py"
        file.write_text(dedent(source), encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        targets = {module: module} if entry_points is None else entry_points
        lines = ["[forge]", *(f"{entry} = {target}" for entry, target in targets.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        importlib.invalidate_caches()
        return file


def forget_modules(folder: Path) -> None:
    """Drop modules that were imported from a folder, so that the next test imports afresh."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]
