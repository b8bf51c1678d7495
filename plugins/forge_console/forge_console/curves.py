"""Curves drawn with braille characters: each cell of the terminal is 2 dots wide and 4 high."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of a braille character for (column, row from the top)."""

_BLOCKS = "▁▂▃▄▅▆▇█"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """A range that shows the values well: never empty, and 0 to 1 where they are all in it.

    Only finite values are asked for; none gives (0, 1).
    """
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low >= 0 and high <= 1 and high >= 0.3:
        return 0.0, 1.0
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return (low if low == 0 else low - margin), high + margin


def finite(points: Sequence[Point]) -> list[Point]:
    """Without the points whose value is not a finite number."""
    return [(x, y) for x, y in points if math.isfinite(y)]


def curve(
    points: Sequence[Point],
    width: int,
    height: int,
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[str]:
    """A line through the points, as ``height`` rows of ``width`` cells, top row first.

    Points that fall into one column of dots are drawn as their mean; of many points, those that
    fall into one cell, which is calmer. Points outside of ``y_range`` are drawn at its edge;
    ``points`` are finite and in order of x.
    """
    columns, rows = width * 2, height * 4
    per_cell = len(points) > width
    grid = [[0] * width for _ in range(height)]
    placed = [
        (x * 2 if per_cell else x, round(_scaled(y, y_range) * (rows - 1)))
        for x, y in _column_means(points, width if per_cell else columns, x_range)
    ]
    for (x0, y0), (x1, y1) in zip(placed, [*placed[1:], *placed[-1:]], strict=True):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            x = x0 + round((x1 - x0) * i / steps)
            y = rows - 1 - (y0 + round((y1 - y0) * i / steps))
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in grid]


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the values in one row of at most ``width`` cells."""
    points = finite([(float(i), value) for i, value in enumerate(values)])
    if not points:
        return ""
    means = _column_means(points, min(width, len(values)), (0.0, max(1.0, len(values) - 1.0)))
    y_range = bounds([y for _, y in points])
    return "".join(_BLOCKS[round(_scaled(y, y_range) * (len(_BLOCKS) - 1))] for _, y in means)


def _scaled(value: float, within: tuple[float, float]) -> float:
    low, high = within
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _column_means(
    points: Sequence[Point], columns: int, x_range: tuple[float, float]
) -> list[tuple[int, float]]:
    """The mean of the points in each column that has any."""
    low, high = x_range
    found: dict[int, list[float]] = {}
    for x, y in points:
        column = round((x - low) / ((high - low) or 1.0) * (columns - 1))
        found.setdefault(min(columns - 1, max(0, column)), []).append(y)
    return [(column, sum(values) / len(values)) for column, values in sorted(found.items())]
