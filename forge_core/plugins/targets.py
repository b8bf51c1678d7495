"""Whether ``build`` of a component exists, found out without importing it."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from forge_core.contracts.target import Target, taken

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def build_problem(build: object) -> str:
    """What is wrong with a component's ``build``; empty: nothing that is visible from here.

    Args:
        build: what the component says. Installed or handed over in code, a plugin may name any
            function: what other processes could not import travels to them by value.
    """
    if isinstance(build, Target):
        return _target_problem(build.reference)
    if not callable(build):
        return "build must be 'module:attribute' or a function (settings, context)"
    try:
        taken(build)
    except TypeError as error:
        return f"build {error}"
    return ""


def _target_problem(reference: str) -> str:
    if not REFERENCE.fullmatch(reference):
        return f"build is {reference!r}; write 'module:attribute'"
    module, _, attribute = reference.partition(":")
    loaded = sys.modules.get(module)
    if loaded is not None and hasattr(loaded, attribute):
        return ""
    spec = _spec(module)
    if spec is None:
        return f"build is {reference!r}, and there is no module {module}"
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""  # compiled: the conformance suites import it
    source = Path(spec.origin).read_text(encoding="utf-8")
    if not _at_top_level(source, attribute):
        return f"build is {reference!r}, and {module} has no {attribute}"
    return ""


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is; no package on the way is imported."""
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # __main__, in a notebook
        return None
    name = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _at_top_level(source: str, name: str) -> bool:
    """Whether a module defines, assigns or imports a name outside of functions and classes."""
    made = rf"(?:async\s+def|def|class)\s+{name}\b|{name}\s*[:=]"
    taken_in = rf"from\s+\S+\s+import\s+(?:\([^)]*\b{name}\b|[^\n(]*\b{name}\b)"
    return re.search(rf"^(?:{made}|{taken_in})", source, re.MULTILINE) is not None
