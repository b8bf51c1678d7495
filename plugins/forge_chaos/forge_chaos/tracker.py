"""Tracker ``chaos``: injects the faults of a schedule and records what can be checked later."""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_chaos import corruption, processes
from forge_chaos.schedule import Fault, schedule
from forge_chaos.settings import ChaosSettings
from forge_core import Episode, Event, RunInfo, StepRecord, Summary

RECORD = "chaos.jsonl"
"""In the run folder: a line for each fault and each step."""

PATIENCE = 60.0
"""Seconds to wait for weights to corrupt, or for a process that is being started again."""

CATCH_UP = 2.0
"""Seconds for which a step's end waits for the step's faults. No longer: what they wait for may be
waiting for the run."""


class ChaosTracker:
    """Injects faults from a thread of its own, so that they come in the middle of steps.

    A fault is on the disk before it happens: a resumed run does not repeat the one that ended it.
    """

    record = True
    """Called in step with the run, and a run whose faults are not recorded fails."""

    def __init__(self, settings: ChaosSettings) -> None:
        self._settings = settings
        self._faults: list[Fault] = []
        self._due: queue.Queue[tuple[float, Fault] | None] = queue.Queue()
        self._pending = 0
        self._injected = threading.Condition()
        self._ended = threading.Event()
        self._step_seconds = float("inf")
        """Of the fastest step so far, so that none comes after the step it is meant for."""
        self._lock = threading.Lock()
        self._stage = ""
        self._step = 0
        self._run: Path
        self._thread: threading.Thread | None = None

    def start(self, run: RunInfo) -> None:
        """Draw the schedule. Of a resumed run, what was injected before is left out."""
        self._run = run.folder
        self._step = run.resumed_from or 0
        done = self._cut_after(self._step)
        steps = sum(stage.steps or 0 for stage in run.stages)
        everything = schedule(self._settings, steps)
        self._faults = [fault for fault in everything if fault.number not in done]
        self._write({"planned": len(everything), "resumed_from": run.resumed_from})
        self._thread = threading.Thread(target=self._inject_all, name="forge-chaos", daemon=True)
        self._thread.start()

    def step(self, record: StepRecord) -> None:
        """Wait for this step's faults, and let those of the next one come due."""
        with self._injected:
            self._injected.wait_for(lambda: self._pending == 0, timeout=CATCH_UP)
        self._stage, self._step = record.stage, record.step
        seconds = record.timing.get("step_seconds", 0.0)
        self._step_seconds = min(self._step_seconds, seconds)
        self._write({"step": record.step, "stage": record.stage})
        for fault in [fault for fault in self._faults if fault.step <= record.step + 1]:
            if fault.target != "checkpoint":
                self._faults.remove(fault)
                with self._injected:
                    self._pending += 1
                moment = time.monotonic() + fault.moment * self._step_seconds
                self._due.put((moment, fault))

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write down which tasks were answered, and by which weights."""
        rows = [
            [
                episode.task.id,
                sorted({version for version in episode.versions.tolist() if version >= 0}),
            ]
            for episode in episodes
        ]
        self._write({"episodes_of": step, "stage": self._stage, "episodes": rows})

    def event(self, event: Event) -> None:
        """Corrupt a checkpoint that has just been written, where one is due."""
        if event.kind != "checkpoint":
            return
        due = [each for each in self._faults if each.target == "checkpoint"]
        fault = next((each for each in due if each.step <= event.data["step"]), None)
        if fault is not None:
            self._faults.remove(fault)
            self._inject(fault, Path(event.data["path"]))

    def finish(self, summary: Summary) -> None:
        """Stop injecting."""
        self._ended.set()
        self._due.put(None)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._write({"finished": summary.outcome, "exit_code": summary.exit_code})

    def _inject_all(self) -> None:
        """The thread: wait for the next fault that is due."""
        while (item := self._due.get()) is not None:
            moment, fault = item
            if not self._ended.wait(max(0.0, moment - time.monotonic())):
                self._inject(fault, None)
            with self._injected:
                self._pending -= 1
                self._injected.notify_all()

    def _inject(self, fault: Fault, checkpoint: Path | None) -> None:
        """Do it, and log the outcome: a line before it and a line after it."""
        self._write({"fault": fault.number, "kind": fault.kind, "target": fault.target,
                     "in_step": self._step + 1, "time": time.time()})  # fmt: skip
        draw = random.Random(fault.draw)
        self._until = time.monotonic() + PATIENCE
        try:
            did = self._do(fault, draw, checkpoint)
        except OSError as error:
            did, why = "", str(error)
        else:
            why = "" if did else self._nothing(fault)
        self._write({"injected": fault.number, "did": did, "why_not": why})
        print(f"chaos: {fault.kind} {fault.target}: {did or why}", file=sys.stderr, flush=True)

    def _do(self, fault: Fault, draw: random.Random, checkpoint: Path | None) -> str:
        if checkpoint is not None:
            return corruption.corrupt_checkpoint(checkpoint, draw)
        if fault.target == "weights":
            return corruption.corrupt_weights(self._run, draw, self._goes_on)
        while self._goes_on():
            pids = processes.processes_of(fault.target, self._run)
            did = self._disturb(fault, pids, draw) if pids else ""
            if did or not processes.has_any(fault.target, self._run):
                return did
            time.sleep(0.02)  # it is being started again
        return ""

    def _disturb(self, fault: Fault, pids: list[int], draw: random.Random) -> str:
        if fault.kind == "kill":
            return processes.kill(pids, draw)
        if fault.kind == "delay":
            return processes.delay(pids, self._settings.delay_seconds)
        return processes.disconnect(pids, draw)

    def _goes_on(self) -> bool:
        """Whether there is still something to wait for."""
        return time.monotonic() < self._until and not self._ended.is_set()

    def _nothing(self, fault: Fault) -> str:
        if fault.target == "weights":
            return "no weights came through shared memory"
        if processes.has_any(fault.target, self._run):
            return "no process of it came back in time"
        return f"no process of its own; {fault.target}.isolate=true gives it one"

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock, (self._run / RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _cut_after(self, step: int) -> set[int]:
        """Drop what a resumed run does again; returns the numbers of faults that were injected."""
        path = self._run / RECORD
        kept, done = [], set()
        for line in read_record(path):
            if line.get("step", 0) <= step and line.get("episodes_of", 0) <= step:
                kept.append(json.dumps(line) + "\n")
            if "fault" in line:
                done.add(line["fault"])
        if kept:
            path.write_text("".join(kept), encoding="utf-8")
        return done


def read_record(path: Path) -> list[dict[str, Any]]:
    """The lines of ``chaos.jsonl``, without one that was cut short by a crash."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines
