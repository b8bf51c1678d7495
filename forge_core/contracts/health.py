"""What a check of ``forge doctor`` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        level: ``error`` stops runs; ``warning`` costs speed or may surprise.
        subject: what was looked at.
        text: what was found.
        fix: the line that fixes it.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    fix: str = ""
