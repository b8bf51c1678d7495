"""How a person calls this installation's ``forge``, for the commands that Forge prints."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

INSTALL_ENGINES = "bash scripts/install.sh --engines"
"""Installs every engine with its plugin, from a clone of the repository: Forge's own distributions
are on no package index."""


def forge_command() -> str:
    """``forge`` where the shell finds this installation's; else the path of its script, relative to
    the working directory where it lies below it; else ``PYTHON -m forge_core``.

    So a printed command works as it stands, also where the environment was not activated.
    """
    folders = [
        Path(sys.executable).parent,
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("scripts", f"{os.name}_user")),
    ]
    script = next((path for folder in folders if (path := folder / "forge").is_file()), None)
    if script is None:
        return f"{shlex.quote(sys.executable)} -m forge_core"
    found = shutil.which("forge")
    if found is not None and os.path.samefile(found, script):
        return "forge"
    working = Path.cwd()
    below = script.is_relative_to(working)
    return shlex.quote(str(script.relative_to(working) if below else script))


COMMANDS: dict[str, tuple[str, str]] = {
    "presets": ("forge_core.cli.presets:presets", "List the configs that plugins ship."),
    "plugins": ("forge_core.cli.plugins:plugins", "List plugins and the components they bring."),
}
"""Command -> (module:attribute, one-line help). The help stands here, so it costs no import."""
