"""Tracker ``jsonl``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from forge_core import Episode, Event, RunInfo, StageInfo, StepRecord, Summary, Task
from forge_run.settings import JsonlSettings
from forge_run.trackers.jsonl import EPISODES, EVENTS, JsonlTracker
from forge_run.trackers.lines import METRICS
from forge_testing.demo import replay


def strict(path: Path) -> list[dict[str, Any]]:
    """Lines of a file, by a parser that takes nothing but JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def info(folder: Path, resumed_from: int | None = None) -> RunInfo:
    stages = [StageInfo(name="grpo", recipe="grpo", steps=10)]
    return RunInfo(name="r", folder=folder, stages=stages, resumed_from=resumed_from)


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(
        step=step,
        stage="grpo",
        stage_step=step,
        stage_steps=10,
        metrics=metrics,
        timing={"step_seconds": 0.5},
    )


def episodes(count: int) -> list[Episode]:
    return [
        Episode(task=Task(id=str(i), prompt="?"), turns=[], prompt_text="?", completion_texts=["!"])
        for i in range(count)
    ]


def finished(folder: Path) -> Summary:
    return Summary(
        outcome="finished", exit_code=0, message="done", folder=folder, steps=1, seconds=1.0
    )


def test_a_whole_run(tmp_path: Path) -> None:
    replay([JsonlTracker(JsonlSettings(episodes=3))], tmp_path)
    metrics = strict(tmp_path / METRICS)
    assert [line["step"] for line in metrics] == list(range(1, 301))
    assert metrics[0].keys() == {
        *("step", "stage", "stage_step", "timing"),
        *("loss", "grad_norm", "learning_rate", "tokens", "trained_tokens"),
    }
    assert metrics[120]["stage"] == "grpo"
    assert metrics[120]["stage_step"] == 1
    written = strict(tmp_path / EPISODES)
    assert [line["step"] for line in written][:4] == [121, 121, 121, 122]
    first = written[0]
    assert first["stage"] == "grpo"
    assert first["prompt"].endswith("=")
    assert len(first["tokens"]) == len(first["versions"])
    assert first["rewards"] == {"exact_match": first["reward"]}
    kinds = [line["kind"] for line in strict(tmp_path / EVENTS)]
    assert kinds[:3] == ["run_started", "stage_started", "evaluation"]
    assert kinds[-1] == "run_finished"


def test_runs_with_one_seed_differ_in_timing_only(tmp_path: Path) -> None:
    lines = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        seconds = 0.1 if name == "a" else 0.3
        replay([JsonlTracker(JsonlSettings(episodes=1))], tmp_path / name, step_seconds=seconds)
        lines.append(strict(tmp_path / name / METRICS))
    assert lines[0] != lines[1]
    for line in (*lines[0], *lines[1]):
        del line["timing"]
    assert lines[0] == lines[1]


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=1))
    tracker.start(info(tmp_path))
    tracker.step(record(1, loss=math.nan, grad_norm=math.inf, kl=-math.inf, entropy=1.0))
    tracker.event(Event(time=0.0, kind="warning", message="m", data={"at": [math.nan, tmp_path]}))
    [line] = strict(tmp_path / METRICS)
    assert (line["loss"], line["grad_norm"], line["kl"], line["entropy"]) == (None, None, None, 1.0)
    assert strict(tmp_path / EVENTS)[-1]["data"] == {"at": [None, str(tmp_path)]}
    tracker.finish(finished(tmp_path))


def test_text_cannot_break_a_line(tmp_path: Path) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=1))
    tracker.start(info(tmp_path))
    text = 'a\nb\u2028c\x85d"\ud800 ü 数'
    episode = episodes(1)[0]
    episode.completion_texts = [text]
    tracker.step(record(1))
    tracker.episodes(1, [episode])
    [line] = strict(tmp_path / EPISODES)
    assert line["completions"] == [text]
    tracker.finish(finished(tmp_path))


def test_a_line_is_there_before_the_run_goes_on(tmp_path: Path) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=0))
    tracker.start(info(tmp_path))
    tracker.step(record(1, loss=1.0))
    assert len(strict(tmp_path / METRICS)) == 1
    tracker.finish(finished(tmp_path))


@pytest.mark.parametrize(
    ("wanted", "given", "tasks"),
    [(4, 8, ["0", "2", "4", "6"]), (4, 3, ["0", "1", "2"]), (0, 8, []), (1, 5, ["0"])],
)
def test_sampled_episodes_are_spread_over_the_step(
    tmp_path: Path, wanted: int, given: int, tasks: list[str]
) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=wanted))
    tracker.start(info(tmp_path))
    tracker.step(record(1))
    tracker.episodes(1, episodes(given))
    assert [line["task"] for line in strict(tmp_path / EPISODES)] == tasks
    tracker.finish(finished(tmp_path))


def written_by_a_crash(folder: Path, steps: int) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=2))
    tracker.start(info(folder))
    for step in range(1, steps + 1):
        tracker.step(record(step, loss=float(step)))
        tracker.episodes(step, episodes(4))
    for name in (METRICS, EPISODES):
        with (folder / name).open("a") as file:
            file.write('{"step": 99, "los')


@pytest.mark.parametrize(("resumed_from", "kept"), [(3, 3), (0, 0), (None, 0), (7, 5)])
def test_a_resumed_run_cuts_what_it_does_again(
    tmp_path: Path, resumed_from: int | None, kept: int
) -> None:
    written_by_a_crash(tmp_path, 5)
    events = strict(tmp_path / EVENTS)
    tracker = JsonlTracker(JsonlSettings(episodes=2))
    tracker.start(info(tmp_path, resumed_from=resumed_from))
    assert [line["step"] for line in strict(tmp_path / METRICS)] == list(range(1, kept + 1))
    assert len(strict(tmp_path / EPISODES)) == 2 * kept
    tracker.step(record(kept + 1, loss=0.0))
    assert strict(tmp_path / METRICS)[-1]["loss"] == 0.0
    tracker.finish(finished(tmp_path))
    after = strict(tmp_path / EVENTS)
    assert after[: len(events)] == events
    assert [line["kind"] for line in after[len(events) :]] == ["run_started", "run_finished"]
    assert not list(tmp_path.glob("*.aside"))


def test_a_metric_cannot_take_the_place_of_a_key(tmp_path: Path) -> None:
    tracker = JsonlTracker(JsonlSettings(episodes=0))
    tracker.start(info(tmp_path))
    with pytest.raises(ValueError, match="cannot be called 'stage_step'"):
        tracker.step(record(1, stage_step=3.0))
    tracker.finish(finished(tmp_path))


def test_finish_without_a_start_is_quiet(tmp_path: Path) -> None:
    JsonlTracker(JsonlSettings(episodes=1)).finish(finished(tmp_path))
    assert list(tmp_path.iterdir()) == []
