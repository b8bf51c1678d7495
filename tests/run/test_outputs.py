"""Trackers and lifecycle hooks that fail: the run goes on, and says so."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    Episode,
    Forge,
    PluginError,
    RunFailed,
    RunInfo,
    RunStopped,
    Settings,
    StepRecord,
    Summary,
    Task,
    TrackerComponent,
    hookimpl,
)
from forge_core.plugins.manager import PluginManager
from forge_run import listener, observers
from forge_run.events import EventBus
from forge_run.settings import JsonlSettings
from forge_run.trackers.jsonl import JsonlTracker
from forge_services.watchdog import Watchdog
from forge_testing.runs import lines_of, small_config

METHODS = ["start", "step", "event", "episodes", "finish"]


class Tracker:
    """Keeps what it is told; ``misbehave`` is called first in each method, with its name."""

    def __init__(self, misbehave: Callable[[str], None] = lambda method: None) -> None:
        self._misbehave = misbehave
        self.told: list[str] = []
        self.steps: list[int] = []

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)

        def tell(*arguments: Any) -> None:
            self.told.append(method)
            self._misbehave(method)
            if method == "step":
                self.steps.append(arguments[0].step)

        return tell


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What hangs is let go at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALL_SECONDS", "FINISH_SECONDS"):
        monkeypatch.setattr(listener, name, 0.3)
    monkeypatch.setattr(observers, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(listener, "RETRY_AFTER", (0.01, 0.02))


def run(tmp_path: Path, *plugins: object, **sections: Any) -> Summary:
    sections = {"trackers": {"console": None}, "training": TRAINING, **sections}
    config = small_config(checkpointing={"output_dir": str(tmp_path / "runs")}, **sections)
    return Forge(plugins=plugins).run(config)


TRAINING = {"steps": 3, "batch_size": 32, "learning_rate": 0.001}


class Plugin:
    """Brings a tracker called ``mine``."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    @hookimpl
    def forge_trackers(self) -> Iterator[TrackerComponent]:
        yield TrackerComponent(
            name="mine", settings=Settings, build=lambda *_: self._tracker, summary="a test's"
        )


@pytest.mark.parametrize("how", ["raises", "exits", "hangs"])
def test_a_tracker_that_fails_costs_the_run_nothing(
    tmp_path: Path, release: threading.Event, impatient: None, how: str
) -> None:
    def misbehave(method: str) -> None:
        if method != "step":
            return
        if how == "hangs":
            release.wait(60)
        raise SystemExit(0) if how == "exits" else ValueError("no such project")

    tracker = Tracker(misbehave)
    trackers = {"console": None, "mine": {}}
    summary = run(tmp_path, Plugin(tracker), trackers=trackers)
    reason = {"raises": "ValueError: no such project", "exits": "SystemExit: 0"}.get(
        how, "no answer for 0.3 s"
    )
    line = f"tracker mine: step: {reason}; the run goes on without it"
    assert (summary.outcome, summary.exit_code) == ("finished", 0)
    assert [each for each in summary.warnings if "tracker" in each] == [line]
    assert tracker.told.count("step") == 1, "it is given up"
    assert tracker.told.count("finish") == (how != "hangs"), "what it has is kept"
    written = json.loads((summary.folder / "summary.json").read_text())
    assert written["warnings"] == list(summary.warnings)
    assert [each["step"] for each in lines_of(summary.folder / "metrics.jsonl")] == [1, 2, 3]
    events = lines_of(summary.folder / "events.jsonl")
    assert [each["message"] for each in events if each["kind"] == "tracker_failed"] == [line]
    assert events[-1]["kind"] == "run_finished"


def _step(number: int) -> StepRecord:
    return StepRecord(
        step=number, stage="s", stage_step=number, stage_steps=9, metrics={}, timing={}
    )


def _course(
    tmp_path: Path, *trackers: Any, steps: int = 3, plugins: tuple[object, ...] = ()
) -> Any:
    """A made-up run, told to trackers; returns its event bus."""
    named = {f"t{index}": tracker for index, tracker in enumerate(trackers)}
    bus = EventBus(named, PluginManager(plugins, discover=False).implementations)
    bus.start(RunInfo(name="x", folder=tmp_path, stages=()))
    episode = Episode(Task("t", "1+1="), turns=[])
    for number in range(1, steps + 1):
        bus.step(_step(number), [episode])
        bus.event("checkpoint", f"checkpoint step_{number}")
    bus.finish(
        Summary(
            outcome="finished", exit_code=0, message="", folder=tmp_path, steps=steps, seconds=1.0
        )
    )
    return bus


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_may_fail(
    tmp_path: Path, release: threading.Event, impatient: None, method: str, hangs: bool
) -> None:
    def misbehave(called: str) -> None:
        if called == method:
            if hangs:
                release.wait(60)
            raise KeyError("run")

    bad, good = Tracker(misbehave), Tracker()
    bus = _course(tmp_path, bad, good)
    reason = "no answer for 0.3 s" if hangs else "KeyError: 'run'"
    assert bus.warnings == [f"tracker t0: {method}: {reason}; the run goes on without it"]
    assert good.steps == [1, 2, 3]
    assert good.told[-1] == "finish"


def test_a_lost_connection_is_tried_again(tmp_path: Path, impatient: None) -> None:
    class Lost(OSError):
        """HTTP clients derive their errors from OSError."""

    failures = [ConnectionResetError(), None, TimeoutError(), Lost("502 Bad Gateway")]

    def misbehave(method: str) -> None:
        if method == "step" and failures and (error := failures.pop()) is not None:
            raise error

    tracker = Tracker(misbehave)
    assert _course(tmp_path, tracker).warnings == []
    assert tracker.steps == [1, 2, 3]


def test_a_slow_tracker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BACKLOG", 4)
    tracker = Tracker(lambda method: time.sleep(0.005))
    bus = _course(tmp_path, tracker, steps=50)
    assert bus.warnings == []
    assert tracker.steps == list(range(1, 51))
    assert tracker.told == ["start", *["step", "episodes", "event"] * 50, "finish"]


class FullDisk(JsonlTracker):
    """The disk is full from the first step on."""

    def start(self, run: RunInfo) -> None:
        super().start(run)
        with open("/dev/full", "w") as full:
            for file in self._files.values():
                os.dup2(full.fileno(), file.fileno())


def test_the_runs_own_record_fails_the_run_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        _course(tmp_path, Tracker(), FullDisk(JsonlSettings(episodes=1)))
    message = f"{tmp_path}/metrics.jsonl: cannot be written: No space left on device"
    assert str(caught.value) == message


class Observer:
    """Raises in a lifecycle hook."""

    def __init__(self, hook: str, error: BaseException) -> None:
        self.calls = 0

        def raises() -> None:
            self.calls += 1
            raise error

        setattr(self, hook, hookimpl(raises))


@pytest.mark.parametrize(
    "hook",
    ["forge_run_started", "forge_step_finished", "forge_checkpoint_saved", "forge_run_finished"],
)
def test_an_observer_that_raises_costs_the_run_nothing(tmp_path: Path, hook: str) -> None:
    observer = Observer(hook, ValueError("no such project"))
    summary = run(tmp_path, observer)
    line = (
        f"plugin Observer: {hook}: ValueError: no such project; the run goes on without this hook"
    )
    assert (summary.exit_code, observer.calls) == (0, 1)
    assert [each for each in summary.warnings if "plugin" in each] == [line]
    written = json.loads((summary.folder / "summary.json").read_text())
    assert written["warnings"] == list(summary.warnings)


def test_an_observer_that_hangs_at_the_end_is_left(
    tmp_path: Path, release: threading.Event, impatient: None
) -> None:
    class Hangs:
        @hookimpl
        def forge_run_finished(self) -> None:
            release.wait(60)

    bus = _course(tmp_path, plugins=(Hangs(),))
    assert bus.warnings == [
        "plugin Hangs: forge_run_finished: no answer for 0.3 s; the run goes on without this hook"
    ]


def test_a_hook_that_does_not_return_is_named() -> None:
    class Slow:
        @hookimpl
        def forge_step_finished(self) -> None:
            time.sleep(0.5)

    messages: list[str] = []
    bus = EventBus({}, PluginManager([Slow()], discover=False).implementations)
    with Watchdog(lambda kind, message, data: messages.append(message), threshold=0.1) as watchdog:
        bus.observers.waiting = watchdog.waiting
        bus.step(_step(1), [])
    assert messages
    assert re.match(r"run has waited .* s for forge_step_finished of plugin Slow", messages[0])


def test_a_plugin_that_fails_on_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        run(tmp_path, Observer("forge_config_resolved", KeyError("team")))
    assert str(caught.value) == "plugin Observer: forge_config_resolved failed: KeyError: 'team'"
    assert not (tmp_path / "runs").exists()


def test_an_observer_may_still_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="enough"):
        run(tmp_path, Observer("forge_step_finished", RunStopped("enough")))


def test_a_plugin_that_fails_on_an_episode_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        run(tmp_path, Observer("forge_episode_finished", ZeroDivisionError("reward / length")))
    assert str(caught.value) == (
        "plugin Observer: forge_episode_finished: ZeroDivisionError: reward / length"
    )
