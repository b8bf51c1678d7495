"""Numbers and foreign text as a person reads them in a terminal."""

from __future__ import annotations

import math
import unicodedata


def duration(seconds: float) -> str:
    """``0:42``, ``12:05``, ``3:02:01``."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    """Four digits or so: ``0.1234``, ``12.34``, ``1,234``, ``1.0e-05``."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 10:
        return f"{value:.2f}"
    if size >= 1:
        return f"{value:.3f}"
    if size >= 0.001 or value == 0:
        return f"{value:.4f}"
    return f"{value:.1e}"


def one_line(text: str) -> str:
    """Text of a model in one line: line ends shown, and nothing that a terminal would obey."""
    shown = text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " ")
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cs") else char
        for char in shown
    )
