"""``forge config`` and ``forge presets`` as people call them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_core import Forge, RunConfig
from forge_core.config.effective import to_yaml
from forge_testing.command import CommandResult

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]
Call = Callable[..., CommandResult]


@pytest.fixture
def forge(
    run_forge: Callable[..., CommandResult], app: Forge, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """The command over this folder's components."""
    for name in ("FORGE_TRAINER__LR", "FORGE_TRAINING__STEPS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> CommandResult:
        return run_forge(*arguments, app=app)

    return call


def test_show_prints_a_config_that_loads_again(forge: Call, read: Read, write: Write) -> None:
    result = forge("config", "show", "two-stages", "training.steps=5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert read(write("again.yaml", result.stdout)) == read("two-stages", "training.steps=5")


def test_show_without_a_source(forge: Call, read: Read) -> None:
    assert forge("config", "show").stdout == to_yaml(read(None).tree)
    changed = read(None, "trainer.lr=1")
    assert forge("config", "show", "trainer.lr=1").stdout == to_yaml(changed.tree)
    assert "\n\ntraining:\n" in forge("config", "show").stdout


def test_show_one_stage(forge: Call, read: Read, write: Write) -> None:
    result = forge("config", "show", "two-stages", "--stage", "grpo")
    [alone] = read(write("alone.yaml", result.stdout)).stages
    assert alone == read("two-stages").stages[1]
    result = forge("config", "show", "two-stages", "--stage", "gpro")
    assert result.exit_code == 2
    assert result.stderr == "error: --stage gpro: no such stage (allowed: sft, grpo)\n"


def test_one_source_only(forge: Call) -> None:
    result = forge("config", "show", "two-stages", "training.steps")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: training.steps: one config at a time; an override is key=value or ~key\n"
    )


def test_explain(forge: Call, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.yaml", "training:\n  seed: 1\ntrainer:\n  lr: 1e-3\n")
    monkeypatch.setenv("FORGE_TRAINER__LR", "1e-4")
    result = forge("config", "explain", "trainer.lr", "a.yaml")
    assert result.stdout == (
        "trainer.lr (training.learning_rate) = 0.0001\n"
        "  from      environment, FORGE_TRAINER__LR, typed as trainer.lr\n"
        "  overrode  0.001  (a.yaml:4, typed as trainer.lr)\n"
        "  meaning   peak learning rate\n"
        "  allowed   a number, at least 0\n"
        "  default   1.0e-05\n"
    )
    result = forge("config", "explain", "training.steps", "two-stages", "--", "~training.steps")
    assert result.stdout.splitlines()[0:3] == [
        "stages.sft.training.steps = null",
        "  from      default",
        "  overrode  ~training.steps  (command line, ~training.steps)",
    ]
    result = forge("config", "explain", "trainer.lr=3")
    assert result.exit_code == 2
    result = forge("config", "explain", "nothing.here")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: nothing.here: no such key in this config")


def test_diff(forge: Call, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_TRAINING__SEED", "9")
    write("a.yaml", "name: x\ntraining: {seed: 1}\n")
    write("runs/b/config.yaml", "name: x\ntraining:\n  seed: 2\n")
    result = forge("config", "diff", "a.yaml", "runs/b")
    assert result.exit_code == 0
    assert result.stdout == ("training.seed\n  - 1  (a.yaml:2)\n  + 2  (runs/b/config.yaml:3)\n")
    assert forge("config", "diff", "a.yaml", "a.yaml").stdout == "no difference\n"


def test_schema(forge: Call) -> None:
    whole = json.loads(forge("config", "schema").stdout)
    assert whole["title"] == "Forge config"
    one = json.loads(forge("config", "schema", "--family", "loss", "--component", "grpo").stdout)
    assert one["properties"]["use"]["const"] == "grpo"
    assert forge("config", "schema", "--family", "loss").exit_code == 2


def test_presets(forge: Call) -> None:
    lines = forge("presets").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["preset", "kind", "summary", "from"],
        ["two-stages", "run", "SFT,", "then", "GRPO", "World"],
        ["acme/big", "model", "a", "model", "World"],
    ]


def test_without_presets(
    run_forge: Callable[..., CommandResult], forge_app: Callable[..., Forge]
) -> None:
    assert run_forge("presets", app=forge_app()).stdout == "no plugin ships a preset\n"


HEAVY = (
    *("numpy", "torch", "transformers", "safetensors", "datasets", "tensorboard"),
    *("vllm", "torchtitan", "monarch", "torchstore"),
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plugins"],
        ["plugins", "--json"],
        ["config", "show", str(Path(__file__).parent / "getting_started.yaml")],
        ["config", "explain", "trainer.lr"],
        ["config", "schema"],
        ["presets"],
    ],
)
def test_no_heavy_import(arguments: list[str]) -> None:
    """In a fresh process, with the plugins that are really installed."""
    # Only commands that resolve a config import what reads its layers.
    resolves = arguments[:2] in (["config", "show"], ["config", "explain"])
    heavy = HEAVY if resolves else (*HEAVY, "pydantic_settings", "dotenv")
    program = (
        "import sys; from forge_core.cli import main; "
        f"code = main({arguments!r}); "
        f"loaded = [name for name in {heavy!r} if name in sys.modules]; "
        "sys.exit(f'{code} {loaded}' if code or loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
