"""Curves of braille characters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_console.curves import bounds, curve, finite, sparkline

values = st.floats(allow_nan=False, allow_infinity=False, width=32)


def dots(rows: list[str]) -> list[str]:
    """Rows of ``#`` and ``.``, four for each row of cells."""
    drawn = []
    for row in rows:
        codes = [0 if cell == " " else ord(cell) - 0x2800 for cell in row]
        for left, right in ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80)):
            drawn.append(
                "".join("#" if code & bit else "." for code in codes for bit in (left, right))
            )
    return drawn


def test_a_rising_line() -> None:
    rows = curve([(0, 0), (7, 1)], 4, 2, x_range=(0, 7), y_range=(0, 1))
    assert dots(rows) == [
        ".......#",
        "......#.",
        ".....#..",
        "....#...",
        "...#....",
        "..#.....",
        ".#......",
        "#.......",
    ]


def test_steep_lines_have_no_gaps() -> None:
    drawn = dots(curve([(0, 0), (1, 1)], 2, 5, x_range=(0, 1), y_range=(0, 1)))
    assert all("#" in row for row in drawn)


def test_many_points_are_drawn_as_means() -> None:
    points = [(float(x), float(x % 2)) for x in range(1000)]
    drawn = dots(curve(points, 10, 4, x_range=(0, 999), y_range=(0, 1)))
    filled = [index for index, row in enumerate(drawn) if "#" in row]
    assert set(filled) <= {7, 8}


def test_points_outside_are_drawn_at_the_edge() -> None:
    drawn = dots(curve([(0, -5), (3, 9)], 2, 1, x_range=(0, 3), y_range=(0, 1)))
    assert drawn[0][3] == "#"
    assert drawn[3][0] == "#"


def test_nothing_to_draw() -> None:
    assert curve([], 3, 2, x_range=(0, 1), y_range=(0, 1)) == ["   ", "   "]
    assert sparkline([], 10) == ""
    assert sparkline([math.nan], 10) == ""
    assert bounds([]) == (0.0, 1.0)


def test_finite_leaves_gaps_out() -> None:
    assert finite([(1, 0.5), (2, math.nan), (3, -math.inf), (4, 1)]) == [(1, 0.5), (4, 1)]


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [([0.2, 0.9], (0.0, 1.0)), ([3.0, 5.0], (2.9, 5.1)), ([2.0], (1.8, 2.2)), ([0.0], (0.0, 1.0))],
)
def test_bounds(given_values: list[float], expected: tuple[float, float]) -> None:
    assert bounds(given_values) == pytest.approx(expected)


@given(st.lists(values, min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 8))
def test_any_values_fill_exactly_the_cells(ys: list[float], width: int, height: int) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    low, high = bounds(ys)
    assert low < high
    assert all(low <= y <= high for y in ys)
    rows = curve(points, width, height, x_range=(0.0, float(len(ys))), y_range=(low, high))
    assert [len(row) for row in rows] == [width] * height
    assert "#" in "".join(dots(rows))
    assert 1 <= len(sparkline(ys, width)) <= width
