"""When checkpoints are written, and what is left where one cannot be."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, RunFailed, RunStopped, hookimpl
from forge_run.checkpoint import SaveTimes
from forge_testing.command import process_environ
from forge_testing.runs import StopAt, lines_of, write_config

from .conftest import metrics_of

SFT = {"training": {"steps": 6, "batch_size": 16, "learning_rate": 0.01}, "recipe": {"use": "sft"}}


def drafts(run: Path) -> list[str]:
    """What was begun and not finished, anywhere in a run folder."""
    return [path.name for path in run.rglob(".*")]


class SlowSteps:
    """A clock for checkpoints that only steps move, by six minutes each."""

    def __init__(self) -> None:
        self.now = 0.0

    @hookimpl
    def forge_step_finished(self) -> None:
        self.now += 360

    def times(self, section: Any) -> SaveTimes:
        return SaveTimes(section, clock=lambda: self.now)


@pytest.mark.parametrize("stop", [3, 6])
def test_a_run_goes_on_from_a_checkpoint_by_time(
    small_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Without save_interval: every second step of a stage, and its end."""
    clock = SlowSteps()
    monkeypatch.setattr("forge_run.loop.SaveTimes", clock.times)
    small_config["checkpointing"]["keep"] = 10
    small_config["stages"]["grpo"]["training"]["steps"] = 4
    small_config.pop("eval_dataset")
    whole = Forge(plugins=[clock]).run(small_config)
    names = sorted(path.name for path in (whole.folder / "checkpoints").iterdir())
    assert names == ["step_2", "step_3", "step_5", "step_7"]
    with pytest.raises(RunStopped):
        Forge(plugins=[clock, StopAt(stop)]).run(small_config)
    (folder,) = set(Path(small_config["checkpointing"]["output_dir"]).iterdir()) - {whole.folder}
    Forge().run(resume=folder)
    assert metrics_of(folder) == metrics_of(whole.folder)
    weights = "checkpoints/step_7/model.safetensors"
    assert (folder / weights).read_bytes() == (whole.folder / weights).read_bytes()


def test_weights_that_are_not_finite_are_not_saved(small_config: dict[str, Any]) -> None:
    """They come of the last step, after which no loss would tell."""
    small_config["stages"] = {"sft": SFT}
    small_config["checkpointing"] |= {"save_interval": 1, "keep": 1}
    small_config.pop("eval_dataset")
    with pytest.raises(RunStopped):
        Forge(plugins=[StopAt(4)]).run(small_config)
    (folder,) = Path(small_config["checkpointing"]["output_dir"]).iterdir()
    good = (folder / "checkpoints" / "step_3" / "model.safetensors").read_bytes()
    huge = ["optimizer.weight_decay=10", "learning_rate=1e38", "steps=4"]
    with pytest.raises(RunFailed) as caught:
        Forge().run(resume=folder, overrides=[f"stages.sft.training.{key}" for key in huge])
    line = str(caught.value)
    assert line.startswith("stage sft: trainer torch: after step 4: weight model.")
    assert line.endswith(f"(the last good checkpoint is {folder}/checkpoints/step_3)")
    assert "\n" not in line
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_3"]
    assert (folder / "checkpoints" / "step_3" / "model.safetensors").read_bytes() == good


def test_weights_that_are_not_finite_are_not_published(small_config: dict[str, Any]) -> None:
    """For a held-out score between two steps."""
    broken = {**SFT["training"], "learning_rate": 1e38, "optimizer": {"weight_decay": 10.0}}
    small_config["stages"] = {"sft": {**SFT, "training": broken}}
    small_config["evaluation"] = {"interval": 1}
    with pytest.raises(RunFailed, match=r"after step 1: weight .* \(there is no checkpoint yet\)$"):
        Forge().run(small_config)


def forge_run(*arguments: str, before: Any = None, code: str = "") -> tuple[int, str]:
    """``forge run`` in a process of its own: exit code and what it printed."""
    program = f"{code}\nfrom forge_core.cli import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", *arguments],
        preexec_fn=before,
        env=process_environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("where", ["model", "checkpoints/step_6"])
def test_a_full_disk_is_named_and_leaves_a_summary(
    small_config: dict[str, Any], tmp_path: Path, where: str
) -> None:
    """A limit on the size of files acts as the disk: a checkpoint's moments are twice as large
    as the model."""
    small_config["stages"] = {"sft": SFT}
    small_config.pop("eval_dataset")
    limit = 8_192 if where == "model" else 100_000
    file = write_config(small_config, tmp_path / "config.yaml")

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code, printed = forge_run(str(file), before=bound)
    (folder,) = Path(small_config["checkpointing"]["output_dir"]).iterdir()
    assert code == 1, printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: cannot write {folder}/{where} ("), line
    assert "MiB free there)" in line
    assert json.loads((folder / "summary.json").read_text())["exit_code"] == 1
    assert drafts(folder) == []
    assert not (folder / where).exists()


FILL = """
import sys
from pathlib import Path
from forge_core import Forge, hookimpl

class Fill:
    @hookimpl
    def forge_step_finished(self):
        with open(Path(sys.argv[2]) / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

Forge(plugins=[Fill()]).run(sys.argv[1])
"""


def test_a_disk_without_any_room_leaves_a_summary(
    small_config: dict[str, Any], tmp_path: Path
) -> None:
    """A small file system that is filled to its last page after the first step."""
    disk = tmp_path / "disk"
    disk.mkdir()
    small_config["stages"] = {"sft": SFT}
    small_config.pop("eval_dataset")
    small_config["checkpointing"]["output_dir"] = str(disk / "runs")
    file = write_config(small_config, tmp_path / "config.yaml")
    mount = f"mount -t tmpfs -o size=2M none {disk}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    program = f'{mount} && {sys.executable} -c "$1" {file} {disk}; cat {disk}/runs/*/summary.json'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", program, "sh", FILL],
        env=process_environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    start = done.stdout.rfind('{\n "outcome"')
    assert start >= 0, done.stdout + done.stderr
    summary = json.loads(done.stdout[start:])
    assert summary["exit_code"] == 1
    assert "No space left on device" in summary["message"]


class InTheWay:
    """Puts a folder where the summary goes, then fails where it is told to."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        folder = next(Path(self.output).iterdir())
        (folder / "summary.json").mkdir(exist_ok=True)
        if self.fails:
            raise RunStopped("told to")

    @hookimpl
    def forge_config_resolved(self, config: Any) -> None:
        self.output = config.checkpointing.output_dir


@pytest.mark.parametrize("fails", [False, True])
def test_a_summary_that_cannot_be_written_changes_no_outcome(
    small_config: dict[str, Any], fails: bool
) -> None:
    small_config["stages"] = {"sft": SFT}
    small_config.pop("eval_dataset")
    app = Forge(plugins=[InTheWay(fails)])
    if fails:
        with pytest.raises(RunStopped, match="told to"):
            app.run(small_config)
    else:
        assert app.run(small_config).outcome == "finished"
    (folder,) = Path(small_config["checkpointing"]["output_dir"]).iterdir()
    events = lines_of(folder / "events.jsonl")
    warnings = [event["message"] for event in events if event["kind"] == "warning"]
    assert warnings[-1] == f"cannot write {folder}/summary.json: Is a directory"


def test_a_run_killed_while_it_makes_its_model_can_be_resumed(
    small_config: dict[str, Any], tmp_path: Path
) -> None:
    """Between the weights and the tokenizer."""
    small_config["stages"] = {"sft": SFT}
    small_config.pop("eval_dataset")
    file = write_config(small_config, tmp_path / "config.yaml")
    kill = (
        "import os, signal\n"
        "from transformers import PreTrainedTokenizerBase as T\n"
        "T.save_pretrained = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"
    )
    code, printed = forge_run(str(file), code=kill)
    assert code == -signal.SIGKILL, printed
    (folder,) = Path(small_config["checkpointing"]["output_dir"]).iterdir()
    assert not (folder / "model").exists()
    Forge().run(resume=folder)
    assert drafts(folder) == []
    assert os.listdir(folder / "checkpoints") == ["step_6"]
