"""Files that a config names (``use: my_reward.py:brevity``): a run keeps a copy and a hash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from forge_core import UsageError
from forge_core.config.in_force import LOCK, records
from forge_core.config.yaml_source import display
from forge_core.plugins.from_code import REFERENCE, content_hash

if TYPE_CHECKING:
    from forge_core import RunConfig

FOLDER = "code"
"""Of the run folder, with the copies."""

KEY = "files"
"""Of ``run.lock``: file -> hash of its content."""


def file_hashes(config: RunConfig) -> dict[str, str]:
    """Hash of each file that a config names, by its path; of those that are there."""
    return {str(path): content_hash(path.read_bytes()) for path in _files(config) if path.is_file()}


def keep_files(folder: Path, config: RunConfig) -> None:
    """Copy the files that a config names into the run's folder. Copies of older ones stay."""
    for file, content in file_hashes(config).items():
        copy = copy_of(folder, Path(file), content)
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def copy_of(folder: Path, file: Path, content: str) -> Path:
    """Where a run keeps a file that had a hash."""
    return folder / FOLDER / f"{file.stem}-{content}.py"


def check_files(folder: Path) -> None:
    """The files that a run goes on with are there.

    Raises:
        UsageError: one is missing; names it and the run's copy.
    """
    for file, content in _recorded(folder).items():
        if not Path(file).is_file():
            raise UsageError(
                f"{file}: no such file, and the run uses it; the run's copy is "
                f"{display(copy_of(folder, Path(file), content))}"
            )


def changed_files(folder: Path, config: RunConfig) -> list[str]:
    """One line for each file that is not what the run used until now."""
    before = _recorded(folder)
    return [
        f"{file} has changed, and the run goes on with it as it is now; as it was: "
        f"{display(copy_of(folder, Path(file), before[file]))}"
        for file, content in file_hashes(config).items()
        if file in before and content != before[file]
    ]


def _recorded(folder: Path) -> dict[str, str]:
    """What the newest ``run.lock`` says; nothing where it cannot be read."""
    try:
        lock = yaml.safe_load((records(folder)[-1] / LOCK).read_bytes())
        files = lock[KEY]
        return {str(file): str(content) for file, content in files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        return {}


def _files(config: RunConfig) -> list[Path]:
    references = dict.fromkeys(_used(config.tree))
    matches = (REFERENCE.fullmatch(reference) for reference in references)
    return list(dict.fromkeys(Path(match["file"]) for match in matches if match is not None))


def _used(tree: Mapping[str, Any]) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _used(value)
        elif key == "use" and isinstance(value, str):
            yield value
