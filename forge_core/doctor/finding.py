"""What a check says."""

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
        mend: the line that mends it.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    mend: str = ""
