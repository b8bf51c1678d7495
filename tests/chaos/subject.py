"""The run that most areas disturb, undisturbed: what the others are compared with."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from forge_core import Forge, RewardComponent, RunStopped, Settings, StepRecord, hookimpl
from forge_testing.command import run_in_process
from forge_testing.runs import lines_of, scores_of, small_config, untimed, write_config
from tests.chaos.cases import Command, Outcome, Wrong

STEPS = 4
"""Two of SFT, then two of GRPO."""

HALFWAY = 3


class NoSettings(Settings):
    """Nothing."""


class Digits:
    """Rewards differ between completions of an untrained model, so that every step trains."""

    def __call__(self, sample: Any) -> float:
        return sum(map(ord, sample.completion)) % 7 / 7.0


def build_digits(settings: Any, context: Any) -> Digits:
    return Digits()


class Subject:
    """The plugin of the undisturbed run."""

    stop_at = 0

    @hookimpl
    def forge_rewards(self) -> Any:
        yield RewardComponent(
            name="digits", settings=NoSettings, build=build_digits, summary="for the campaign"
        )

    @hookimpl
    def forge_step_finished(self, record: StepRecord) -> None:
        if record.step == self.stop_at:
            raise RunStopped("stopped by the campaign")


class World:
    """Made once, before any case; cases are forks and find it here."""

    app: Forge
    plugin: Subject
    undisturbed: Path
    """The run folder of the whole run."""
    halfway: Path
    """That of one that stands after ``HALFWAY`` steps."""
    expected: dict[str, Any]
    calls: dict[str, str]
    """``run`` and ``resume``: first letter of each call that changes the folder."""
    generated: str
    """What ``forge generate`` prints of the undisturbed run."""


def subject_config(output: Path, **changes: Any) -> dict[str, Any]:
    """The config of the run; it writes below ``output``."""
    sections: dict[str, Any] = {
        "name": "chaos",
        "dataset": {"use": "arithmetic", "low": 0, "high": 9},
        "eval_dataset": {"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        "evaluation": {"tasks": 4},
        "rewards": {"digits": {}},
        "sampling": {"max_tokens": 3},
        "trackers": {"console": {"view": "plain"}, "jsonl": {}},
        "checkpointing": {"output_dir": str(output), "save_interval": 1, "keep": 2},
        "stages": {
            "sft": {
                "recipe": {"use": "sft"},
                "training": {"steps": 2, "batch_size": 4, "learning_rate": 0.01},
            },
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 4},
                "loss": {"use": "grpo", "kl_coef": 0.05},
                "training": {"steps": 2, "batch_size": 8, "learning_rate": 0.01},
            },
        },
    }
    return small_config(**sections | changes)


def prepare(scratch: Path) -> None:
    """Import everything, and make the runs that cases start from."""
    import torch

    torch.set_num_threads(1)
    World.plugin = Subject()
    World.app = Forge(plugins=[World.plugin])
    whole = write_config(subject_config(scratch / "whole"), scratch / "whole.yaml")
    result = run_in_process("run", str(whole), app=World.app)
    assert result.exit_code == 0, result
    (World.undisturbed,) = (scratch / "whole").iterdir()
    World.expected = facts(World.undisturbed)
    assert World.expected["metrics"][-1]["grad_norm"] > 0
    World.plugin.stop_at = HALFWAY
    half = write_config(subject_config(scratch / "half"), scratch / "half.yaml")
    result = run_in_process("run", str(half), app=World.app)
    World.plugin.stop_at = 0
    assert result.exit_code == 3, result
    (World.halfway,) = (scratch / "half").iterdir()
    # The second pass in each fork is then as quick as it gets.
    assert run_in_process("run", str(whole), "--dry-run", app=World.app).exit_code == 0


def facts(folder: Path) -> dict[str, Any]:
    """What two equal runs have in common: every metric, every weight, every score."""
    return {
        "metrics": untimed(lines_of(folder / "metrics.jsonl")),
        "outcome": json.loads((folder / "summary.json").read_text())["outcome"],
        "weights": {
            path.parent.name: hashlib.blake2b(path.read_bytes()).hexdigest()[:16]
            for path in sorted(folder.glob("checkpoints/step_*/model.safetensors"))
        },
        "scores": {f"{stage} {when}": score for (stage, when), score in scores_of(folder).items()},
        "steps of episodes": [line["step"] for line in lines_of(folder / "episodes.jsonl")],
    }


def check_equal(folder: Path, *, only: tuple[str, ...] = ()) -> None:
    """Compare a finished run with the undisturbed one.

    Raises:
        Wrong: they differ; says where.
    """
    try:
        found = facts(folder)
    except (OSError, ValueError, KeyError) as error:
        raise Wrong(f"exit code 0 and a file that cannot be read: {error!r}") from error
    # A checkpoint that is damaged is not removed with the old ones.
    found["weights"] = {step: found["weights"].get(step) for step in World.expected["weights"]}
    for name, value in World.expected.items():
        if (not only or name in only) and found[name] != value:
            raise Wrong(
                f"exit code 0 and other {name}: {_short(value)} became {_short(found[name])}"
            )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} lines, the last {json.dumps(value[-1:])[:200]}"
    return json.dumps(value)[:300]


def start(folder: Path, *arguments: str, before: Any = lambda: None, **changes: Any) -> Command:
    """``forge run`` of the subject in a folder."""
    config = write_config(subject_config(folder / "runs", **changes), folder / "config.yaml")
    return Command(["run", str(config), *arguments], folder, World.app, before)


def resume(folder: Path, run: Path, *arguments: str, before: Any = lambda: None) -> Command:
    """``forge run --resume`` of a run."""
    return Command(["run", "--resume", str(run), *arguments], folder, World.app, before)


def run_of(folder: Path) -> Path | None:
    """The run folder that a case's command has made, if it came so far."""
    runs = sorted((folder / "runs").glob("*")) if (folder / "runs").is_dir() else []
    return next((run for run in runs if (run / "config.yaml").is_file()), None)


def copy_of(run: Path, folder: Path) -> Path:
    """A run folder of a case's own, equal to a prepared one."""
    place = folder / "runs" / run.name
    shutil.copytree(run, place, symlinks=True)
    return place


def finish(folder: Path, run: Path) -> Outcome:
    """Resume a run to its end and compare it with the undisturbed one.

    Raises:
        Wrong: it does not finish, or not equally.
    """
    outcome = resume(folder, run).end()
    if outcome.code != 0:
        raise Wrong(f"cannot be resumed: {outcome}")
    check_equal(run)
    return outcome
