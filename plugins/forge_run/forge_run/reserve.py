"""Room on the disk that a run keeps for saying how it ended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

RESERVE = ".reserve"

BYTES = 128 * 1024
"""``summary.json``, ``error.txt`` and the last lines of ``events.jsonl``, with space to spare."""


class Reserve:
    """A file in the run folder that is deleted before the last ones are written, so that a run that
    ends because the disk is full still leaves a summary.

    Args:
        folder: the run folder. If the disk is full now, none is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESERVE
        try:
            self._path.write_bytes(bytes(BYTES))
        except OSError:
            self.release()

    def release(self) -> None:
        """Free the reserved space."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
