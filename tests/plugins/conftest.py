"""Installed plugins of ``tests/dists``, made importable for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_core.plugins.info import PluginInfo
from forge_core.plugins.manager import PluginManager
from forge_testing.distributions import forget_modules

DISTS = Path(__file__).parents[1] / "dists"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``install("good", "conflict")`` puts those folders of ``tests/dists`` on ``sys.path``."""

    def put(*names: str) -> None:
        for name in names:
            assert (DISTS / name).is_dir(), name
            monkeypatch.syspath_prepend(DISTS / name)

    yield put
    forget_modules(DISTS)


@pytest.fixture
def find() -> Callable[[PluginManager, str], PluginInfo]:
    """``find(manager, name)``: the one plugin of that name."""

    def one(manager: PluginManager, name: str) -> PluginInfo:
        [info] = [plugin for plugin in manager.plugins() if plugin.name == name]
        return info

    return one
