"""A resumed run: which config holds, what is refused, what the folder says of the whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core import Forge, RunFailed, RunStopped, StepRecord, UsageError, hookimpl
from forge_core.config.in_force import config_in_force
from forge_testing.runs import StopAt, lines_of, small_config, untimed

STAGES = {
    "sft": {
        "recipe": {"use": "sft"},
        "training": {"steps": 2, "batch_size": 8, "learning_rate": 0.01},
    },
    "grpo": {
        "recipe": {"use": "grpo", "group_size": 4},
        "training": {"steps": 3, "batch_size": 8, "learning_rate": 0.001},
    },
}


def staged(folder: Path) -> dict[str, Any]:
    return small_config(
        eval_dataset={"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        evaluation={"tasks": 8},
        checkpointing={"output_dir": str(folder / "runs"), "save_interval": 1},
        stages=STAGES,
    )


def stopped_at(step: int, folder: Path) -> Path:
    with pytest.raises(RunStopped):
        Forge(plugins=[StopAt(step)]).run(staged(folder))
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture(scope="module")
def in_second_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 + 3 steps that is at step 3, after the first of its second stage."""
    return stopped_at(4, tmp_path_factory.mktemp("second"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, finished."""
    return Forge().run(staged(tmp_path_factory.mktemp("whole"))).folder


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    """``copied(run)``: a copy of a run folder, to do with as one likes."""
    return lambda run: Path(shutil.copytree(run, tmp_path / "copy" / run.name))


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def moments(folder: Path) -> list[tuple[str, str, int]]:
    return [(e["stage"], e["moment"], e["step"]) for e in summary_of(folder)["evaluations"]]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"stages.grpo.training.steps": 0.5}, "stages.grpo.training.steps"),
        ({"training.seed": 1}, r"training\.seed=1: stage 'grpo' has begun with 0"),
        ({"stages.grpo.recipe": {"use": "sft"}}, r"recipe\.use=sft: stage 'grpo' has begun"),
        ({"model.init.config.hidden_size": 48}, "has made its model from model.init"),
        ({"stages.sft": None}, r"has run sft, grpo; the config must begin .*\(it has: grpo\)"),
        ({"stages.grpo": None}, "is in stage 'grpo', which the config does not have"),
        ({"loss.use": "nonsense"}, "nonsense"),
    ],
    ids=str,
)
def test_what_cannot_hold_is_refused_and_changes_nothing(
    in_second_stage: Path, overrides: Mapping[str, Any], expected: str
) -> None:
    before = content(in_second_stage)
    with pytest.raises(UsageError, match=expected):
        Forge().run(resume=in_second_stage, overrides=overrides)
    assert content(in_second_stage) == before


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path) -> None:
    run = stopped_at(2, tmp_path)  # the checkpoint is of step 1, in the first stage
    Forge().run(resume=run)
    before = content(run)
    with pytest.raises(UsageError, match="'grpo' would have 1 steps, and has done 3 already"):
        Forge().run(resume=run, overrides={"stages.grpo.training.steps": 1})
    assert content(run) == before


def test_what_does_not_hold_is_said_and_not_recorded(
    in_second_stage: Path, copied: Callable[[Path], Path], tmp_path: Path
) -> None:
    run = copied(in_second_stage)
    started = (run / "config.yaml").read_bytes()
    overrides = {
        "name": "another",
        "checkpointing.output_dir": str(tmp_path / "elsewhere"),
        "training.steps": 4,
        "stages.sft.training.learning_rate": 0.5,
        "stages.grpo.dataset.high": 8,
    }
    summary = Forge().run(resume=run, overrides=overrides)
    assert (summary.folder, summary.steps) == (run, 6)
    assert summary.checkpoint == run / "checkpoints" / "step_6"
    assert not (tmp_path / "elsewhere").exists()
    assert (run / "config.yaml").read_bytes() == started
    config = Forge().resolve(run)
    assert config_in_force(run) == run / "resumes" / "1" / "config.yaml"
    assert config.name == "small"
    assert [stage.training.steps for stage in config.stages] == [2, 4]
    assert [stage.training.learning_rate for stage in config.stages] == [0.01, 0.001]
    assert (
        config.checkpointing.output_dir
        == Forge().resolve(run / "config.yaml").checkpointing.output_dir
    )
    lock = yaml.safe_load((run / "resumes" / "1" / "run.lock").read_text())
    assert lock["plugins"]["forge-rl-grpo:grpo"]["status"] == "ok"
    events = lines_of(run / "events.jsonl")
    warnings = "\n".join(event["message"] for event in events if event["kind"] == "warning")
    assert "name=another: does nothing, the run goes on in" in warnings
    assert "checkpointing.output_dir=" in warnings
    assert "training.steps, training.learning_rate: stage 'sft' is done" in warnings or (
        "training.learning_rate, training.steps: stage 'sft' is done" in warnings
    )
    assert "dataset.high: stage 'grpo' goes on at task" in warnings
    (changed,) = [event for event in events if event["kind"] == "config_changed"]
    assert "grpo: training.steps: 3 -> 4" in changed["data"]["changes"]
    assert not any(line.startswith("sft:") for line in changed["data"]["changes"])


class Broken:
    """Fails the first step that it sees."""

    @hookimpl
    def forge_episode_finished(self, episode: Any) -> None:
        raise ValueError("broken")


def test_a_resume_that_fails_leaves_the_config_as_it_was(
    in_second_stage: Path, copied: Callable[[Path], Path], whole: Path
) -> None:
    run = copied(in_second_stage)
    config = (run / "config.yaml").read_bytes()
    with pytest.raises(RunFailed, match="broken"):
        Forge(plugins=[Broken()]).run(
            resume=run, overrides={"stages.grpo.training.learning_rate": 0.5}
        )
    assert (run / "config.yaml").read_bytes() == config
    assert config_in_force(run) == run / "config.yaml"
    assert summary_of(run)["outcome"] == "failed"
    assert moments(run) == moments(whole)[:3]
    Forge().run(resume=run)
    weights = "checkpoints/step_5/model.safetensors"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()
    assert moments(run) == moments(whole)


def test_a_summary_is_of_the_whole_run(
    in_second_stage: Path, copied: Callable[[Path], Path], whole: Path
) -> None:
    run = copied(in_second_stage)
    first = summary_of(run)
    assert moments(run) == [("sft", "before", 0), ("sft", "after", 2), ("grpo", "before", 2)]
    (run / "summary.json").unlink()  # as after kill -9
    Forge().run(resume=run)
    summary, expected = summary_of(run), summary_of(whole)
    assert summary["evaluations"] == expected["evaluations"]
    assert summary["metrics"] == expected["metrics"]
    state = json.loads((whole / "checkpoints" / "step_5" / "state.json").read_text())
    assert 0 < state["seconds"] <= expected["seconds"]
    assert summary["seconds"] > 0
    again = run.parent / "again"
    shutil.copytree(in_second_stage, again)
    Forge().run(resume=again)
    assert summary_of(again)["seconds"] > first["seconds"]


def test_a_finished_run_is_left_as_it_is(whole: Path, run_forge: Any) -> None:
    before = content(whole)
    result = run_forge("run", "--resume", str(whole))
    assert result.exit_code == 0
    assert "the target was reached before, at step 5; nothing is left to do" in result.stdout
    result = run_forge("run", "--resume", str(whole), "stages.grpo.training.learning_rate=0.5")
    assert result.exit_code == 0
    result = run_forge("run", "--resume", str(whole), "--dry-run", "stages.grpo.training.steps=9")
    assert "goes on from step 5 of 11" in result.stdout
    assert "changed: grpo: training.steps: 3 -> 9" in result.stdout
    assert content(whole) == before


def test_a_run_that_died_before_its_last_score_gets_it(
    whole: Path, copied: Callable[[Path], Path]
) -> None:
    run = copied(whole)
    expected = summary_of(run)["evaluations"]
    (run / "summary.json").unlink()
    assert Forge().run(resume=run).outcome == "finished"
    assert summary_of(run)["evaluations"] == expected
    assert [row["step"] for row in lines_of(run / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_target_lowered_to_what_is_done_ends_the_stage(
    in_second_stage: Path, copied: Callable[[Path], Path]
) -> None:
    run = copied(in_second_stage)
    summary = Forge().run(resume=run, overrides={"stages.grpo.training.steps": 1})
    assert (summary.outcome, summary.steps) == ("finished", 3)
    assert moments(run)[-1] == ("grpo", "after", 3)
    assert json.loads((run / "checkpoints/step_3/state.json").read_text())["stage_done"]


class Seen:
    """Keeps the steps that it hears of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    @hookimpl
    def forge_step_finished(self, record: StepRecord) -> None:
        self.steps.append(record.step)


def test_a_finished_run_is_given_a_further_target(
    whole: Path, copied: Callable[[Path], Path]
) -> None:
    run, seen = copied(whole), Seen()
    Forge(plugins=[seen]).run(resume=run, overrides={"stages.grpo.training.steps": 4})
    assert seen.steps == [6]
    assert moments(run) == [*moments(whole), ("grpo", "after", 6)]


@pytest.mark.parametrize("damage", ["torn", "empty", "edited"])
def test_a_damaged_config_is_named(
    in_second_stage: Path, copied: Callable[[Path], Path], damage: str, run_forge: Any
) -> None:
    run = copied(in_second_stage)
    path = run / "config.yaml"
    text = path.read_text()
    path.write_text({"torn": text[:300], "empty": "", "edited": text + "\n"}[damage])
    before = content(run)
    for command in (("run", "--resume"), ("config", "show"), ("plan",), ("generate",)):
        more = ["1+1="] if command == ("generate",) else []
        result = run_forge(*command, str(run), *more)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "config.yaml: damaged or edited, its hash is not the one in run.lock" in line
    assert content(run) == before


def test_a_damaged_summary_is_named_and_the_run_goes_on(
    in_second_stage: Path, copied: Callable[[Path], Path], whole: Path
) -> None:
    run = copied(in_second_stage)
    (run / "summary.json").write_text('{"outcome": ')
    summary = Forge().run(resume=run)
    assert any("summary.json: cannot be read" in line for line in summary.warnings)
    assert moments(run) == moments(whole)


@pytest.mark.parametrize("damage", ["a digit", "a line", "deleted", "torn"])
def test_damaged_metrics_are_put_back_from_the_checkpoint(
    in_second_stage: Path, copied: Callable[[Path], Path], whole: Path, damage: str
) -> None:
    run = copied(in_second_stage)
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if damage == "deleted":
        path.unlink()
    elif damage == "torn":
        path.write_text("".join(lines[:2]) + lines[2][:20])
    else:
        lines[1] = lines[1].replace('"stage_step": 2', '"stage_step": 3')
        path.write_text("".join(lines[1:] if damage == "a line" else lines))
    summary = Forge().run(resume=run)
    (warning,) = [line for line in summary.warnings if "metrics.jsonl" in line]
    assert "metrics.jsonl: is not what was written up to step 3: put back as it was" in warning
    assert untimed(lines_of(path)) == untimed(lines_of(whole / "metrics.jsonl"))


def test_a_damaged_lock_does_not_make_the_config_damaged(
    in_second_stage: Path, copied: Callable[[Path], Path]
) -> None:
    run = copied(in_second_stage)
    text = (run / "run.lock").read_text()
    key, value = text.splitlines()[0].split(": ")
    assert key == "config_blake2b"
    (run / "run.lock").write_text(text.replace(value, value[::-1]))
    summary = Forge().run(resume=run)
    assert any("run.lock: missing or damaged" in line for line in summary.warnings)
