"""Every ``forge`` command that the documentation shows does what it is shown to do."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core import Forge
from forge_testing.command import run_as_process

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^    (forge .*)$", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SMALL = {
    "FORGE_STAGES__SFT__TRAINING__STEPS": "2",
    "FORGE_STAGES__SFT__TRAINING__BATCH_SIZE": "16",
    "FORGE_STAGES__GRPO__TRAINING__STEPS": "2",
    "FORGE_STAGES__GRPO__TRAINING__BATCH_SIZE": "16",
    "FORGE_STAGES__GRPO__SAMPLING__MAX_TOKENS": "4",
    "FORGE_EVAL_DATASET__SIZE": "10",
}
"""The documented commands, with runs of seconds in place of minutes."""

RUN_ELSEWHERE = {
    "forge run quickstart --generator vllm",
    "forge run quickstart "
    "--runtime monarch --transport torchstore --generator vllm --trainer titan",
}
"""Commands that other tests run until the model has learnt: plugins/forge_vllm/tests/test_run.py
and plugins/forge_monarch/tests/test_five_engines.py."""


def commands() -> list[Any]:
    """Each once, from the first page that shows it."""
    shown = {
        line.partition("#")[0].strip(): page.name
        for page in reversed(PAGES)
        for line in reversed(COMMAND.findall(page.read_text()))
    }
    assert shown.keys() >= RUN_ELSEWHERE
    return [
        pytest.param(line, id=f"{page}: {line}")
        for line, page in reversed(shown.items())
        if line not in RUN_ELSEWHERE
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config ``my.yaml`` and the run folder of a finished quickstart."""
    folder = tmp_path_factory.mktemp("documented")
    result = run_as_process("config", "show", "quickstart", cwd=folder, environ=SMALL)
    config = yaml.safe_load(result.stdout)
    config["name"] = "my"
    (folder / "my.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    page = (ROOT / "docs" / "rewards.md").read_text()
    (rewards,) = re.findall(r"```python\n([^`]*def brevity\(.*?)```", page, re.S)
    (folder / "my_reward.py").write_text(rewards)
    result = run_as_process("run", "quickstart", cwd=folder, environ=SMALL, timeout=600)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def run_documented(folder: Path, installed_guide: Path) -> Callable[[list[str]], Any]:
    def run(arguments: list[str]) -> Any:
        return run_as_process(
            *arguments, cwd=folder, python_path=[installed_guide], environ=SMALL, timeout=600
        )

    return run


@pytest.mark.parametrize("line", commands())
def test_command(line: str, folder: Path, run_documented: Callable[[list[str]], Any]) -> None:
    (finished,) = (folder / "runs").iterdir()
    words = shlex.split(line)[1:]
    if ">" in words:
        words = words[: words.index(">")]
    # A run's folder is called after the time; the one that was made for this test stands for it.
    words = [re.sub(r"^runs/\S+$", f"runs/{finished.name}", word) for word in words]
    result = run_documented(words)
    for path in (folder / "runs").iterdir():  # also of a command that failed: others come after it
        if path != finished:
            path.rename(folder / f"done-{path.name}-{abs(hash(line))}")
    assert result.exit_code == 0, result.stderr
    assert "Traceback" not in result.stderr


def test_the_installed_package_works_in_a_run(
    folder: Path, run_documented: Callable[[list[str]], Any]
) -> None:
    """Its generator samples, its loss trains, its reward is part of the score."""
    result = run_documented(
        [
            *("run", "quickstart", "--generator", "plain", "--loss", "keep_good"),
            *("rewards.concise.limit=3", "rewards.concise.weight=0.1"),
            f"checkpointing.output_dir={folder / 'acme'}",
        ]
    )
    assert result.exit_code == 0, result.stderr
    (run,) = (folder / "acme").iterdir()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["generator"]["use"] == "plain"
    assert config["stages"]["grpo"]["loss"]["use"] == "keep_good"
    assert config["stages"]["sft"]["loss"]["use"] == "cross_entropy"
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    assert '"reward/part/concise"' in metrics[-1]


def test_the_readmes_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as an object, with no packaging; short runs through the environment."""
    (program,) = PYTHON.findall((ROOT / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    # As a script of its own: what it defines lives in __main__ and reaches the reward process.
    (tmp_path / "program.py").write_text(program)
    subprocess.run([sys.executable, "program.py"], check=True, timeout=600)
    (run,) = (tmp_path / "runs").iterdir()
    assert '"reward/part/brevity"' in (run / "metrics.jsonl").read_text().splitlines()[-1]


def test_the_readmes_config_is_one(run_forge: Any, tmp_path: Path) -> None:
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    path = tmp_path / "readme.yaml"
    path.write_text(config)
    result = run_forge("config", "show", str(path))
    assert result.exit_code == 0, result.stderr
    assert Forge().resolve(path).stages[0].recipe.name == "grpo"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
