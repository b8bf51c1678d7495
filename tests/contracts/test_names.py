"""The kernel names no plugin, and nothing that plugins bring: not in code, messages or docstrings.

The names are those of the plugins in this tree, as their metadata and hooks have them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import forge_core
from forge_core import Forge

KERNEL = Path(forge_core.__file__).parent
PLUGINS = KERNEL.parent / "plugins"

WORDS = {
    "arithmetic": "a word",
    "chat": "a word",
    "constant": "a word",
    "console": "a class of the package rich",
    "config": "a word",
    "doctor": "a word",
    "jsonl": "a file format",
    "linear": "a word",
    "local": "a word",
    "math": "a module of Python",
    "memory": "a word",
    "optim": "a module of torch",
    "run": "a word",
    "thinking": "a word",
    "torch": "the package, which the kernel's tensor code imports",
}
"""Names that are something else too, and what. They are looked for only where one is selected."""


def names() -> set[str]:
    """Of plugins, their packages, components, presets, models and commands."""
    found: set[str] = set()
    for file in PLUGINS.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        entries = project.get("entry-points", {}).get("forge", {})
        found |= {project["name"], *entries, *(name.partition(".")[0] for name in entries.values())}
    ours = {name for name in found if name.startswith("forge-rl-")}
    manager = Forge().plugins
    catalog = manager.catalog
    brought = [
        *(entry for family in catalog.families for entry in catalog.entries(family)),
        *(entry for kind in ("run", "model") for entry in catalog.presets(kind)),
    ]
    found |= {entry.name for entry in brought if entry.provider.distribution in ours}
    found |= {
        f"forge {entry.name}" for entry in catalog.commands() if entry.provider.distribution in ours
    }
    return found - PROMISED


def lines() -> Iterator[tuple[str, str]]:
    """``file:line`` and text of every line of the kernel."""
    for file in sorted(KERNEL.rglob("*.py")):
        place = file.relative_to(KERNEL)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{place}:{number}", line


def pattern(name: str) -> re.Pattern[str]:
    if name in WORDS:  # use: NAME, {"use": "NAME"}, use=NAME, --trainer NAME
        where = rf"""(?:\buse["']?\s*[:=]\s*["']?|--[a-z]+[ =]){name}\b"""
    else:
        ends = "a-z0-9_" if name.startswith("forge_") else "a-z0-9"  # forge_run_started is a hook
        where = rf"(?<![a-z0-9]){re.escape(name)}(?![{ends}])"
    return re.compile(where, re.IGNORECASE)


PROMISED = {"forge run", "forge plan", "forge runs", "forge model", "forge doctor", "forge config"}
"""Commands that the contracts explain themselves with, whichever plugin brings them."""

ENGINES = ("vllm", "titan", "monarch", "torchstore")
"""These not even inside another word, such as the package that a plugin drives."""


def found() -> list[str]:
    patterns = [pattern(name) for name in sorted(names())]
    patterns += [re.compile(name, re.IGNORECASE) for name in ENGINES]
    return [
        f"{where}: {line.strip()}"
        for where, line in lines()
        if any(each.search(line) for each in patterns)
    ]


def test_the_kernel_names_no_plugin_and_nothing_that_plugins_bring() -> None:
    assert {"grpo", "sft", "forge_torch", "single_turn", "quickstart", "smollm2"} <= names()
    assert not found(), "\n".join(found())


@pytest.mark.parametrize(
    "line",
    [
        'DEFAULTS = {"trainer": {"use": "torch"}}',
        "use --transport shm",
        '"""Such as ``recipe grpo``."""',
        "from forge_monarch.host_worker import serve",
        "pip install TorchTitan",
        "forge run quickstart",
    ],
)
def test_what_it_looks_for(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "lines", lambda: iter([("here.py:1", line)]))
    assert found() == [f"here.py:1: {line}"]
