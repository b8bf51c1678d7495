"""What the README of each example tells people to type works, in an environment of its own."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(page.parent for page in (ROOT / "examples").glob("*/README.md"))
COMMANDS = re.compile(r"^    ((?:pip|forge) .*)$", re.MULTILINE)


def commands(example: Path) -> list[list[str]]:
    return [line.split() for line in COMMANDS.findall((example / "README.md").read_text())]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that sees this one's packages; returns its folder of programs."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    # Through ``addsitedir``, so that the editable installs of this environment work there too.
    here = sysconfig.get_path("purelib")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return folder / "bin"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_installs_it_and_runs_its_config(example: Path) -> None:
    shown = commands(example)
    assert ["pip", "install", "-e", f"examples/{example.name}"] in shown
    for config in example.glob("*.yaml"):
        assert ["forge", "run", f"examples/{example.name}/{config.name}"] in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [each for each in EXAMPLES if any(each.glob("*.yaml"))], ids=lambda path: path.name
)
def test_the_commands_work(example: Path, environment: Path, tmp_path: Path) -> None:
    for words in commands(example):
        if words[0] == "pip":
            # What it depends on is there; nothing is fetched.
            words = [*words[1:], "--no-deps", "--no-build-isolation", "--quiet"]
            words = ["-m", "pip", *words]
        else:
            short = [f"checkpointing.output_dir={tmp_path}", "training.steps=2"]
            words = ["-m", "forge_core", *words[1:], *short]
        python = str(environment / "python")
        ended = subprocess.run(
            [python, *words], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr
    (run,) = tmp_path.iterdir()
    written = yaml.safe_load((run / "run.lock").read_text())
    assert any(name.startswith("acme-") for name in written["plugins"])
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
