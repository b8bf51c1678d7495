"""What ``docs/config.md`` shows works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_core import Forge
from forge_core.config.resolve import resolve
from forge_testing.command import CommandResult

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
CONFIGS = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if ":\n" in text]


@pytest.mark.parametrize("text", CONFIGS)
def test_configs_load(text: str, tmp_path: Path) -> None:
    pytest.importorskip("forge_grpo")
    pytest.importorskip("forge_sft")
    pytest.importorskip("forge_torch")
    path = tmp_path / "my.yaml"
    path.write_text(text)
    assert resolve(Forge().plugins.catalog, path, environ={}).stages


def test_there_are_configs() -> None:
    assert len(CONFIGS) == 2


def test_the_explanation_shown(
    run_forge: Callable[..., CommandResult],
    app: Forge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("\n" * 7 + "training: {learning_rate: 1e-5}\n")
    shown = re.search(
        r"    \$ FORGE_TRAINER__LR=1e-4 forge (config explain .*)\n((?:    .*\n)+)", PAGE
    )
    assert shown is not None
    monkeypatch.setenv("FORGE_TRAINER__LR", "1e-4")
    result = run_forge(*shown[1].split(), app=app)
    assert result.stdout == re.sub("^    ", "", shown[2], flags=re.M)
