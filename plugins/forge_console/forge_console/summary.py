"""What the terminal, or the log, shows when a run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text

from forge_console.curves import sparkline
from forge_console.history import RunHistory, is_alarm
from forge_console.wording import duration, number
from forge_core import Evaluation, Outcome, Summary, UsageError
from forge_core.command import forge_command
from forge_run.trackers.jsonl import EPISODES, EVENTS
from forge_run.trackers.lines import METRICS

_MARKS: dict[Outcome, tuple[str, str]] = {
    "finished": ("✓", "bold green"),
    "stopped": ("■", "bold yellow"),
    "interrupted": ("■", "bold yellow"),
    "failed": ("✗", "bold red"),
}

_CURVE_CELLS = 24
_LABEL_CELLS = 12


def summary_lines(history: RunHistory | None, summary: Summary) -> list[Text]:
    """The end of a run: outcome, scores, where everything lies, and what to do next.

    Args:
        history: what was seen of it; None when it ended before it began.
    """
    mark, style = _MARKS[summary.outcome]
    name = f" {history.run.name}" if history else ""
    head = Text.assemble(
        (f"{mark} {summary.outcome}", style),
        (name, "bold"),
        f" · {summary.steps:,} steps in {duration(summary.seconds)}",
    )
    lines = [head, *(Text(f"  {line}") for line in summary.message.splitlines())]
    if summary.exit_code == UsageError.exit_code:  # nothing was trained, nothing is left to look at
        return lines
    for block in (_scores(summary.evaluations), _course(history), _places(summary), _next(summary)):
        if block:
            lines += [Text(""), *block]
    return lines


def _scores(evaluations: Sequence[Evaluation]) -> list[Text]:
    """Before -> after for each stage; the last known score where the stage did not end."""
    stages = list(dict.fromkeys(evaluation.stage for evaluation in evaluations))
    width = max([len("held-out score"), *map(len, stages)])
    lines = []
    for stage in stages:
        of_stage = [evaluation for evaluation in evaluations if evaluation.stage == stage]
        line = Text.assemble(("  " + stage.ljust(width), "dim"), "  ")
        if len(of_stage) > 1:
            line.append(f"{of_stage[0].score:.3f} → ")
        line.append(f"{of_stage[-1].score:.3f}", "bold magenta")
        line.append(f"  ({of_stage[-1].tasks} tasks)", "dim")
        lines.append(line)
    return [Text("  held-out score", "bold"), *lines] if lines else []


def _course(history: RunHistory | None) -> list[Text]:
    """How the last stage went: its reward (its loss, where there is none), and any warnings."""
    if history is None:
        return []
    lines = []
    metric, label, style = ("reward/mean", "reward", "green")
    if metric not in history.curves:
        metric, label, style = ("loss", "loss", "yellow")
    values = [value for _, value in history.curves.get(metric, ())]
    if len(values) > 1:
        lines.append(
            Text.assemble(
                (f"  {label:<{_LABEL_CELLS}}", "dim"),
                (sparkline(values, _CURVE_CELLS), style),
                f"  {number(values[0])} → {number(values[-1])}",
            )
        )
    if history.alarms:
        last = next(event for event in reversed(history.events) if is_alarm(event))
        lines.append(
            Text.assemble(
                (f"  {'warnings':<{_LABEL_CELLS}}", "dim"),
                (f"{history.alarms}", "yellow"),
                f", the last: {last.message.splitlines()[0] if last.message else last.kind}",
            )
        )
    return lines


def _places(summary: Summary) -> list[Text]:
    folder = _short(summary.folder)
    places = [("folder", folder)]
    files = [("metrics", METRICS), ("episodes", EPISODES), ("events", EVENTS)]
    for label, name in (*files, ("error", "error.txt")):
        if (summary.folder / name).exists():
            places.append((label, folder / name))
    if summary.checkpoint is not None:
        places.append(("checkpoint", _short(summary.checkpoint)))
    return [
        Text.assemble((f"  {label:<{_LABEL_CELLS}}", "dim"), str(path)) for label, path in places
    ]


def _next(summary: Summary) -> list[Text]:
    folder = _short(summary.folder)
    forge = forge_command()
    commands = [(f"{forge} runs {folder.parent}", "all runs beside this one")]
    if summary.outcome != "finished" and summary.checkpoint is not None:
        commands.insert(0, (f"{forge} run --resume {folder}", "go on from the checkpoint"))
    else:
        commands.append((f"{forge} config show {folder}", "every value it ran with"))
    can_chat = find_spec("forge_chat") is not None
    if can_chat and summary.outcome == "finished" and summary.checkpoint is not None:
        commands.insert(0, (f"{forge} chat {folder}", "talk with the model"))
    width = max(len(command) for command, _ in commands)
    return [
        Text.assemble("  ", (command.ljust(width), "cyan"), (f"  {what}", "dim"))
        for command, what in commands
    ]


def _short(path: Path) -> Path:
    """Relative to the working directory where it lies below it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
