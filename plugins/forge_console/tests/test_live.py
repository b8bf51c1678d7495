"""The console on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forge_console.frame import frame
from forge_console.history import MOST_POINTS, RunHistory
from forge_console.live import LiveView, can_draw
from forge_console.plain import PlainLog
from forge_console.settings import ConsoleSettings
from forge_console.view import make_view
from forge_core import Episode, Event, RunInfo, StageInfo, StepRecord, Summary, Task
from forge_testing.demo import replay
from forge_testing.runs import until

SIZES = [(80, 24), (120, 40), (200, 50), (60, 14), (40, 10), (10, 5), (81, 33), (300, 90)]


class Recorder:
    """Keeps the history of a run at many moments, the way the live view sees it."""

    def __init__(self, check: Callable[[RunHistory], None]) -> None:
        self.check = check

    def start(self, run: RunInfo) -> None:
        self.history = RunHistory(run, 1_000_000.0)
        self.check(self.history)

    def step(self, record: StepRecord) -> None:
        self.history.add_step(record, 1_000_000.0 + record.step * 0.2)
        if record.stage_step in (1, 2, 7, 60, 119, 180):
            self.check(self.history)

    def event(self, event: Event) -> None:
        self.history.add_event(event)
        self.check(self.history)

    def episodes(self, step: int, episodes: list[Episode]) -> None:
        self.history.add_episode(step, episodes[0])

    def finish(self, summary: Summary) -> None:
        self.check(self.history)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_no_line_is_wider_than_the_terminal_and_no_frame_higher(
    tmp_path: Path, width: int, height: int
) -> None:
    frames = []

    def check(history: RunHistory) -> None:
        lines = frame(history, width, height, 1_000_100.0)
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
        assert not any("\n" in line.plain for line in lines)
        frames.append(lines)

    replay([Recorder(check)], tmp_path, outcome="failed")
    assert len(frames) > 20


def shown(history: RunHistory, width: int = 100, height: int = 40) -> str:
    return "\n".join(line.plain for line in frame(history, width, height, 1_000_010.0))


def small_history(**run: Any) -> RunHistory:
    stages = [StageInfo(name="only", recipe="grpo", steps=100)]
    return RunHistory(RunInfo(name="r", folder=Path("r"), **{"stages": stages, **run}), 1_000_000.0)


def step(number: int, steps: int | None = 100, **metrics: float) -> StepRecord:
    return StepRecord(
        step=number,
        stage="only",
        stage_step=number,
        stage_steps=steps,
        metrics=metrics,
        timing={"generated_tokens_per_second": 12345.6},
    )


def test_it_shows_what_a_person_wants_to_see(tmp_path: Path) -> None:
    frames: list[str] = []
    replay([Recorder(lambda history: frames.append(shown(history)))], tmp_path)
    picture = frames[-1]
    for words in (
        "demo · stage 2 of 2 · grpo",
        "generator torch  trainer torch  loss grpo  transport memory  runtime local",
        "step 180 of 180",
        "reward  0.5156 → 0.9361",
        "held-out score  0.0000 → 0.9491",
        "sampled tok/s",
        "train tok/s",
        "staleness",
        "grad norm",
        "KL",
        "entropy",
        "mismatch",
        "a sampled episode",
        "exact_match",
        "checkpoint step_300",
    ):
        assert words in picture
    assert "waiting for the first step" in frames[0]
    assert "loss cross_entropy" in frames[0]


def test_time_left_counts_down_between_steps() -> None:
    history = small_history()
    for number, at in ((1, 50.0), (2, 60.0), (3, 70.0)):
        history.add_step(step(number), 1_000_000.0 + at)
    assert history.seconds_left(1_000_070.0) == pytest.approx(970)
    assert history.seconds_left(1_000_075.0) == pytest.approx(965)
    assert history.seconds_left(1_009_000.0) == 0


def test_a_stage_without_a_target_has_no_time_left() -> None:
    history = small_history(stages=[StageInfo(name="only", recipe="x", steps=None)])
    history.add_step(step(1, None, loss=1.0), 1_000_001.0)
    history.add_step(step(2, None, loss=1.0), 1_000_002.0)
    assert history.seconds_left(1_000_003.0) is None
    assert "step 2" in shown(history)
    assert "left" not in shown(history)


def test_what_a_model_writes_cannot_reach_the_terminal() -> None:
    history = small_history()
    history.add_step(step(1, loss=float("nan")), 1_000_001.0)
    episode = Episode(
        task=Task(id="\x1b[2J", prompt="p", answer="[bold]x"),
        turns=[],
        prompt_text="a\nb\x07[red]",
        completion_texts=["\x1b]0;owned\x07\x9b31m\ud800 数学 " * 40],
        rewards={"math": 1.0, "format": -0.5},
        reward=0.5,
    )
    history.add_episode(1, episode)
    history.add_event(Event(time=1_000_001.0, kind="warning", message="two\nlines \x1b[31m"))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=40, color_system=None)
    for line in frame(history, 120, 40, 1_000_002.0):
        assert line.cell_len <= 120
        console.print(line)
    text = file.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "a⏎b" in text
    assert "[red]" in text
    assert "[bold]x" in text
    assert "loss" in text
    assert "nan" in text


def test_long_runs_keep_a_bounded_history() -> None:
    history = small_history(stages=[StageInfo(name="only", recipe="x", steps=10**6)])
    for number in range(1, 3 * MOST_POINTS):
        history.add_step(step(number, 10**6, loss=1 / number), 1_000_000.0 + number)
    points = history.curves["loss"]
    assert len(points) <= MOST_POINTS
    assert points[-1] == (3 * MOST_POINTS - 1, 1 / (3 * MOST_POINTS - 1))
    assert points == sorted(points)


class Terminal(io.StringIO):
    """Text that is written, also while other threads write."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def live_console(terminal: Terminal, width: int = 80, height: int = 24) -> Console:
    return Console(file=terminal, force_terminal=True, width=width, height=height)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_whole_live_run_writes_no_line_wider_than_the_terminal(
    tmp_path: Path,
    terminal: Terminal,
    clock: Any,
    width: int,
    height: int,
) -> None:
    before = set(threading.enumerate())
    view = LiveView(live_console(terminal, width, height), clock=clock)
    replay([view], tmp_path, clock=clock)
    picture, _, summary = terminal.getvalue().partition("✓")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", picture)
    assert "demo · stage 2 of 2 · grpo" in plain
    assert max(len(line) for line in re.split(r"[\r\n]", plain)) <= width
    assert "finished" in summary
    until(lambda: not set(threading.enumerate()) - before, limit=60)  # rich only tells it to end


def test_it_is_drawn_again_while_the_loop_is_blocked(terminal: Terminal, tmp_path: Path) -> None:
    view = LiveView(live_console(terminal))
    stages = [StageInfo(name="only", recipe="grpo", steps=10)]
    view.start(RunInfo(name="r", folder=tmp_path, stages=stages))
    before = len(terminal.getvalue())
    time.sleep(0.8)  # a step that gives nothing back to the loop
    assert len(terminal.getvalue()) > before
    print("a line from elsewhere")
    view.finish(
        Summary(
            outcome="interrupted", exit_code=130, message="m", folder=tmp_path, steps=0, seconds=1.0
        )
    )
    text = terminal.getvalue()
    assert "a line from elsewhere" in text
    assert "■ interrupted" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is back


@pytest.fixture
def tty() -> Any:
    """A real terminal of 100 x 30, as a file."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        yield file
    os.close(master)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("_plain_environment")
@pytest.mark.parametrize(
    ("environment", "live"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"COLUMNS": "30"}, False)],
)
def test_live_only_on_a_terminal_that_can(
    tty: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], live: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert can_draw(Console(file=tty)) is live


@pytest.mark.usefixtures("_plain_environment")
def test_a_pipe_gets_plain_lines_also_with_forced_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not can_draw(Console(file=io.StringIO()))


def test_the_setting_decides() -> None:
    assert isinstance(make_view(ConsoleSettings(view="live")), LiveView)
    assert isinstance(make_view(ConsoleSettings(view="plain")), PlainLog)
    assert isinstance(make_view(ConsoleSettings()), PlainLog)
