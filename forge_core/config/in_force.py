"""Which config of a run folder is in force, and that it is what was written.

``config.yaml`` is what the run was started with and never changes. What a resumed run goes on with
is in ``resumes/N/config.yaml``, again as a whole. Beside each is a ``run.lock`` with its hash.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from forge_core.config.yaml_source import display
from forge_core.contracts.errors import ConfigError

CONFIG = "config.yaml"
LOCK = "run.lock"
RESUMES = "resumes"
HASH = "config_blake2b"
_SEAL = "lock_blake2b"


def config_hash(content: bytes) -> str:
    """What ``run.lock`` says of a config."""
    return hashlib.blake2b(content).hexdigest()[:32]


def records(folder: Path) -> list[Path]:
    """The folders of a run that hold a config, in order of time: its own, then its resumes'."""
    try:
        numbers = [int(path.name) for path in (folder / RESUMES).iterdir() if path.name.isdigit()]
    except OSError:
        numbers = []
    return [folder, *(folder / RESUMES / str(number) for number in sorted(numbers))]


def config_in_force(folder: Path) -> Path:
    """The newest config of a run folder.

    Raises:
        ConfigError: it is missing, or not what was written: damaged, or edited by hand.
    """
    newest = records(folder)[-1]
    path = newest / CONFIG
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{display(path)}: cannot be read: {error.strerror}") from None
    expected = _hash_in(newest / LOCK)
    if expected is not None and expected != config_hash(content):
        raise ConfigError(
            f"{display(path)}: damaged or edited, its hash is not the one in {LOCK}; put it back "
            f"as it was, or delete {display(newest / LOCK)} to take it as it is"
        )
    return path


def sealed(lock: str) -> str:
    """The text of a ``run.lock`` with its own hash, which distinguishes damage to it from damage
    to the config."""
    return f"{lock}{_SEAL}: {config_hash(lock.encode())}\n"


def lock_trouble(folder: Path) -> str | None:
    """One line if the newest ``run.lock`` of a run folder is missing or damaged."""
    lock = records(folder)[-1] / LOCK
    if _hash_in(lock) is not None:
        return None
    return f"{display(lock)}: missing or damaged: the config beside it is taken as it is"


def _hash_in(lock: Path) -> str | None:
    """None where the file does not tell: then the config cannot be checked."""
    try:
        content = lock.read_bytes()
        said = yaml.safe_load(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(said, dict):
        return None
    seal = said.get(_SEAL)
    if seal is not None and seal != config_hash(content.rpartition(f"{_SEAL}:".encode())[0]):
        return None
    # Without a seal a file of an older version, or a line that is gone.
    found = said.get(HASH)
    return found if isinstance(found, str) else None
