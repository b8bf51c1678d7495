"""One picture of a run for a terminal of a given size: pure, so that any size can be tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, chop_cells
from rich.text import Text

from forge_console.curves import Point, bounds, curve, finite
from forge_console.history import RunHistory, is_alarm
from forge_console.wording import duration, number, one_line
from forge_core import Event

RULE = "bright_black"
LABEL = "dim"

_CHARTS = (
    ("reward/mean", "reward", "green"),
    ("score", "held-out score", "magenta"),
    ("loss", "loss", "yellow"),
    ("completion/length_mean", "tokens a completion", "cyan"),
    ("mismatch/logprob_abs_mean", "sampler-trainer mismatch", "blue"),
)
"""Metric, title and colour, the most wanted first; ``score`` is the held-out score."""


def _count(value: float) -> str:
    return f"{value:,.0f}"


_METRICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", number),
    ("grad norm", "grad_norm", number),
    ("learning rate", "learning_rate", number),
    ("entropy", "entropy", number),
    ("KL", "kl", number),
    ("mismatch", "mismatch/logprob_abs_mean", number),
    ("staleness", "staleness/max", _count),
    ("length", "completion/length_mean", lambda tokens: f"{tokens:,.1f}"),
    ("zero variance", "groups/zero_variance", _count),
)
_TIMINGS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("sampled tok/s", "generated_tokens_per_second", _count),
    ("train tok/s", "train_tokens_per_second", _count),
    ("step", "step_seconds", lambda seconds: f"{seconds:.2f} s"),
)
"""Label, name and format of the numbers below the curves."""

_EVENT_MARKS = {
    "stage_started": ("▶", "cyan"),
    "evaluation": ("◆", "magenta"),
    "checkpoint": ("■", "blue"),
}

_CHART_CELLS = 34
"""Least width of a chart; as many stand side by side as fit."""

_GUTTER = 7
"""Cells left of a curve, for the labels of its axis."""


def frame(history: RunHistory, width: int, height: int, now: float) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells each.

    Curves take what is left over; where there is little, the sampled episode goes first, then the
    events, then the curves.
    """
    head = [
        _title(history, width, now),
        _components(history, width),
        _progress(history, width, now),
    ]
    numbers = _numbers(history, width)
    roomy = height >= 32
    events = _events(history, width, 6 if roomy else 2)
    episode = _episode(history, width, 8 if roomy else 4)
    left = height - len(head) - len(numbers)
    blocks = [numbers]
    for block, needed in ((events, 6), (episode, 6)):
        if block and left - len(block) >= needed:
            blocks.append(block)
            left -= len(block)
    charts = _charts(history, width, min(left, 20))
    lines = [*head, *charts, *blocks[0]]
    for block in reversed(blocks[1:]):
        lines += block
    return [_cropped(line, width) for line in lines[:height]]


def _cropped(line: Text, width: int) -> Text:
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    return line


def _rule(width: int, *parts: tuple[str, str], right: str = "") -> Text:
    """A line across, with words on its left and right."""
    line = Text("── ", RULE)
    for text, style in parts:
        line.append(text, style)
    end = f" {right} ──" if right else ""
    line.append(" " + "─" * (width - line.cell_len - 1 - cell_len(end)), RULE)
    if end:
        line.append(f" {right} ", "bold")
        line.append("──", RULE)
    return line


def _title(history: RunHistory, width: int, now: float) -> Text:
    stage, count = history.stage_info, len(history.run.stages)
    parts = [(history.run.name, "bold"), (" · ", LABEL)]
    if count > 1:
        parts.append((f"stage {history.stage + 1} of {count} · ", LABEL))
    parts.append((stage.name, "bold cyan"))
    if stage.recipe != stage.name:
        parts.append((f" ({stage.recipe})", LABEL))
    return _rule(width, *parts, right=duration(now - history.started))


def _components(history: RunHistory, width: int) -> Text:
    line = Text(" ")
    for index, (family, name) in enumerate(history.components.items()):
        line.append(("  " if index else "") + f"{family} ", LABEL)
        line.append(name)
    return line


def _progress(history: RunHistory, width: int, now: float) -> Text:
    done, target = history.stage_step, history.stage_steps
    words = f" step {done:,}" if target is None else f" step {done:,} of {target:,}"
    left = history.seconds_left(now)
    if left is not None:
        words += f" · {duration(left)} left"
    cells = max(0, width - cell_len(words) - 2)
    filled = 0 if not target else min(cells, round(cells * done / target))
    return Text.assemble(
        " ", ("━" * filled, "green"), ("━" * (cells - filled), RULE), (words, "bold")
    )


def _charts(history: RunHistory, width: int, height: int) -> list[Text]:
    """Curves side by side: a title, the plot, and the steps below it. Empty if it is too low."""
    if height < 5:
        return []
    known = [
        (title, style, points)
        for name, title, style in _CHARTS
        if (points := finite(history.scores if name == "score" else history.curves.get(name, ())))
    ]
    shown = known[: max(1, width // _CHART_CELLS)]
    if not shown:
        return [Text(""), Text(" waiting for the first step", LABEL), Text("")]
    each = width // len(shown)
    columns = [_chart(history, *chart, each, height) for chart in shown]
    return [Text.assemble(*parts) for parts in zip(*columns, strict=True)]


def _chart(
    history: RunHistory, title: str, style: str, points: list[Point], width: int, height: int
) -> list[Text]:
    plot_width, plot_height = max(1, width - _GUTTER - 2), height - 2
    y_range = bounds([y for _, y in points])
    x_range = _x_range(history, points)
    rows = curve(points, plot_width, plot_height, x_range=x_range, y_range=y_range)
    first, last = points[0][1], points[-1][1]
    head = Text.assemble((f"   {title}  ", LABEL))
    if len(points) > 1:
        head.append(f"{number(first)} → ", LABEL)
    head.append(number(last), f"bold {style}")
    lines = [head]
    for index, row in enumerate(rows):
        label = ""
        if index in (0, plot_height - 1):
            label = _axis(y_range[1] if index == 0 else y_range[0])
        edge = "┤" if label else "│"
        lines.append(Text.assemble((f"{label:>{_GUTTER - 1}}{edge}", RULE), (row, style)))
    begin, end = f"{x_range[0]:,.0f}", f"{x_range[1]:,.0f}"
    middle = "─" * max(0, plot_width - len(begin) - len(end))
    lines.append(Text(" " * (_GUTTER - 1) + f"└{begin}{middle}{end}", RULE))
    for line in lines:
        _cropped(line, width)
        line.pad_right(width - line.cell_len)
    return lines


def _axis(value: float) -> str:
    """A number in the cells left of an axis."""
    for digits in (3, 2, 1):
        label = f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")
        if len(label) < _GUTTER:
            break
    return label[: _GUTTER - 1]


def _x_range(history: RunHistory, points: Sequence[Point]) -> tuple[float, float]:
    """From the first point on, as far as is calm: the axis doubles each time the curve fills it."""
    first, last = points[0][0], points[-1][0]
    span = 25.0
    while span < last - first:
        span *= 2
    end = first + span
    if history.stage_steps is not None:
        planned = history.run.stages[: history.stage + 1]
        end = min(end, max(last, float(sum(stage.steps or 0 for stage in planned))))
    return first, max(end, first + 1)


def _numbers(history: RunHistory, width: int) -> list[Text]:
    """The last step's numbers in columns of equal width."""
    if history.record is None:
        return []
    cells = [
        (label, show(values[name]))
        for table, values in (
            (_METRICS, history.record.metrics),
            (_TIMINGS, history.record.timing),
        )
        for label, name, show in table
        if name in values
    ]
    per_row = max(1, width // 24)
    each = width // per_row
    lines = [Text("─" * width, RULE)]
    for start in range(0, len(cells), per_row):
        line = Text()
        for label, value in cells[start : start + per_row]:
            gap = " " * max(1, each - 3 - len(label) - len(value))
            line.append(" " + label, LABEL)
            line.append(gap + value + "  ")
        lines.append(line)
    return lines


def _episode(history: RunHistory, width: int, height: int) -> list[Text]:
    """A sampled episode: prompt, completion, rewards by part."""
    episode = history.episode
    if episode is None:
        return []
    completion = " … ".join(one_line(text) for text in episode.completion_texts)
    body = height - 2
    prompt_rows = max(1, body // 3)
    rewards = Text.assemble((f" {'reward':<11}", LABEL))
    for part, value in episode.rewards.items():
        rewards.append(f"{part} ", LABEL)
        rewards.append(f"{number(value)}  ", _sign(value))
    if len(episode.rewards) > 1:
        rewards.append("total ", LABEL)
        rewards.append(f"{number(episode.reward)}  ", f"bold {_sign(episode.reward)}")
    rewards.append("advantage ", LABEL)
    rewards.append(f"{episode.advantage:+.2f}")
    if episode.task.answer is not None:
        rewards.append("  answer ", LABEL)
        rewards.append(one_line(episode.task.answer))
    for part in episode.all_failures:
        rewards.append(f"  {part} failed", "red")
    named = f"step {history.episode_step:,} · task {one_line(episode.task.id)}"
    return [
        _rule(width, ("a sampled episode", "bold"), (f" · {named}", LABEL)),
        *_paragraph("prompt", one_line(episode.prompt_text), width, prompt_rows, ""),
        *_paragraph("completion", completion, width, body - prompt_rows, _sign(episode.reward)),
        rewards,
    ]


def _sign(value: float) -> str:
    return "green" if value > 0 else "red"


def _paragraph(label: str, text: str, width: int, rows: int, style: str) -> list[Text]:
    """Text beside a label; of a long one its begin and its end."""
    indent = 12
    pieces = chop_cells(text, max(4, width - indent - 1)) or [""]
    if len(pieces) > rows:
        pieces = [*pieces[: rows - 1], "…" + pieces[-1][-(max(4, width - indent - 2)) :]]
    return [
        Text.assemble((f" {label if index == 0 else '':<11}", LABEL), (piece, style))
        for index, piece in enumerate(pieces)
    ]


def _events(history: RunHistory, width: int, count: int) -> list[Text]:
    events = list(history.events)[-count:]
    if not events:
        return []
    return [_rule(width, ("events", "bold")), *(_event(history, event) for event in events)]


def _event(history: RunHistory, event: Event) -> Text:
    mark, style = ("!", "bold yellow") if is_alarm(event) else ("·", LABEL)
    if event.kind == "failed":
        style = "bold red"
    mark, style = _EVENT_MARKS.get(event.kind, (mark, style))
    return Text.assemble(
        (f" {duration(event.time - history.started):>8} ", LABEL),
        (f"{mark} ", style),
        (one_line(event.message), "yellow" if is_alarm(event) else ""),
    )
