"""Whole runs for tests: a tiny config, ``forge run`` as a process, and the records it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from forge_core import RunStopped, StepRecord, hookimpl
from forge_run.checkpoint import CheckpointStore
from forge_testing.command import process_environ
from forge_testing.shapes import tiny_shape

PATIENCE = 600.0
"""Seconds that a start or an end may take on a machine that does other work."""


def small_config(shape: Mapping[str, Any] | None = None, /, **sections: Any) -> dict[str, Any]:
    """The tree of a run that takes seconds: a tiny model on sums of one-digit numbers.

    Without ``stages`` it is three steps of GRPO.

    Args:
        shape: keys of the model's config in place of the tiny one's, such as ``{"head_dim": 32}``.
        sections: top-level sections in place of these, or beside them. With ``stages`` there is no
            ``recipe`` and no ``training`` but theirs.
    """
    config: dict[str, Any] = {
        "name": "small",
        "model": {
            "init": {
                "architecture": "qwen3",
                "characters": "0123456789+=",
                "config": tiny_shape(initializer_range=0.2, **(shape or {})),
            }
        },
        "dataset": {"use": "arithmetic", "low": 0, "high": 9},
        "rewards": {"exact_match": {}},
        "sampling": {"max_tokens": 3},
    }
    if "stages" not in sections:
        config["recipe"] = {"use": "grpo", "group_size": 8}
        config["training"] = {"steps": 3, "batch_size": 32, "learning_rate": 0.001}
    return config | sections


def write_config(config: Mapping[str, Any], path: Path) -> Path:
    """The config as a YAML file; returns its path."""
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file so far, without a line that is still being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def untimed(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records without what depends on the clock, to compare runs by."""
    return [{**line, "timing": None} for line in lines]


def scores_of(folder: Path) -> dict[tuple[str, str], float]:
    """Held-out scores of a finished run: (stage, moment) -> score, as in ``("sft", "after")``."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {(each["stage"], each["moment"]): each["score"] for each in summary["evaluations"]}


def until(condition: Callable[[], object], limit: float = PATIENCE) -> None:
    """Wait until the condition holds, for at most ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit:g} seconds"
        time.sleep(0.05)


class StopAt:
    """A plugin that ends the run when a step is done, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def forge_step_finished(self, record: StepRecord) -> None:
        if record.step == self.step:
            raise RunStopped(f"stopped at step {self.step}, as the test asks")


class Run:
    """``forge run`` as a process at the head of its own session, as a terminal starts it.

    Args:
        folder: is made; the run writes below ``folder/runs``, whatever the config says.
        config: as ``small_config`` makes it.
        arguments: what follows the config on the command line.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "runs"
        self.log = folder / "out.txt"
        """Standard output and error of the command."""
        checkpointing = {**config.get("checkpointing", {}), "output_dir": str(self.output)}
        file = write_config({**config, "checkpointing": checkpointing}, folder / "config.yaml")
        self.process = self._start(str(file), *arguments)

    def resume(self, *arguments: str) -> None:
        """Go on with the run, whose process has ended, in a new one."""
        self.process = self._start("--resume", str(self.folder), *arguments)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "forge_core", "run", *arguments],
                cwd=self.output.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=process_environ(),
            )

    @property
    def folder(self) -> Path:
        """The folder of the run, once there is one."""
        (folder,) = self.output.iterdir()
        return folder

    @property
    def printed(self) -> str:
        """All that the command has printed."""
        return self.log.read_text(encoding="utf-8")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Complete records of one of the run's files so far, such as ``metrics.jsonl``."""
        return [line for file in self.output.glob(f"*/{name}") for line in lines_of(file)]

    def kinds(self) -> Counter[str]:
        """How many events of each kind there were."""
        return Counter(event["kind"] for event in self.lines("events.jsonl"))

    def ranks(self, service: str = "") -> list[int]:
        """Processes of a service's replicas: those that print into its logs.

        Args:
            service: beginning of the name, such as ``generator`` or ``generator-1``; "": all.
        """
        folder = f"{self.output}/"
        return printing_to(lambda file: file.startswith(folder) and f"/logs/{service}" in file)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; fails when the run ends before."""

        def holds() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, self.printed
            return False

        until(holds)

    def until_step(self, step: int) -> None:
        """Wait for the record of a step."""
        self.until(lambda: len(self.lines("metrics.jsonl")) >= step)

    def end(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        return self.process.wait(timeout=PATIENCE)

    def kill(self) -> None:
        """Kill what is left of the command and of its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def printing_to(log: Callable[[str], bool]) -> list[int]:
    """Processes whose output goes to a file, or through a pipe to one whose own output does.

    Args:
        log: whether the path of a file is meant.
    """
    outputs: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                outputs[int(process.name)] = os.readlink(process / "fd" / "1")
    directly = {pid for pid, output in outputs.items() if log(output)}
    pipes = {file for pid in directly for file in _open_files(pid) if file.startswith("pipe:")}
    return [pid for pid, output in outputs.items() if pid in directly or output in pipes]


def _open_files(pid: int) -> set[str]:
    files = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                files.add(os.readlink(descriptor))
    return files


def checkpoints_of(run: Path) -> dict[Path, str]:
    """The checkpoints of a run folder, oldest first, and what is wrong with each.

    Returns:
        folder -> why its manifest does not prove it; empty where it does.
    """
    store = CheckpointStore(run / "checkpoints", keep=1)
    found: dict[Path, str] = {}
    for step in store.steps():
        try:
            store.verify(step)
        except Exception as error:
            found[store.path(step)] = str(error) or type(error).__name__
        else:
            found[store.path(step)] = ""
    return found
