"""Files of JSON lines in a run folder, read with the damage that crashes and disks do to them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge_run import durable

METRICS = "metrics.jsonl"

DAMAGED = ".damaged"
"""Ending of the copy that is kept of a file with damage beyond a last line cut short."""

_NAMED = 3
"""Most lines or gaps that a message names."""


class JsonLines:
    """One such file.

    Args:
        path: may not exist.
        step: lines of later steps do not count; None: lines need no step.
    """

    def __init__(self, path: Path, step: int | None = None) -> None:
        self.path = path
        self._step = step
        self.damaged: list[int] = []
        """Numbers, from 1, of the lines that are none, but for the last; known after reading."""
        self.cut_short = False
        """The last line is a part of one; known after reading."""

    def __iter__(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Each whole line as it stands, without its end, and what it says."""
        self.damaged, self.cut_short = [], False
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                record = _record(line)
                if record is None or not (self._step is None or _has_step(record)):
                    if line.endswith(b"\n"):
                        self.damaged.append(number)
                    else:
                        self.cut_short = True
                elif self._step is None or record["step"] <= self._step:
                    yield line.rstrip(b"\n"), record

    def restore(self) -> None:
        """Replace the file by its whole lines; a copy is kept of what no crash explains.

        The file is a new one afterwards, so that a process that still has it open, because it was
        taken for dead, writes into nothing.
        """
        if not self.path.exists():
            return
        with durable.replacing(self.path) as file:
            for line, _ in self:
                file.write(line + b"\n")
            if self.damaged:
                shutil.copyfile(self.path, self.path.with_name(self.path.name + DAMAGED))

    def put_back(self, copy: Path) -> list[str]:
        """Make the file what its copy in a checkpoint says it was up to ``step``.

        Returns:
            a line that says so, where they differ.
        """
        if not copy.is_file() or [line for line, _ in self] == copy.read_bytes().splitlines():
            return []
        kept = ""
        if self.path.exists():
            shutil.copyfile(self.path, self.path.with_name(self.path.name + DAMAGED))
            kept = f"; the file as it was is kept as {self.path.name}{DAMAGED}"
        with durable.replacing(self.path) as file:
            file.write(copy.read_bytes())
        return [
            f"{self.path}: is not what was written up to step {self._step}: put back as it was, "
            f"from {copy.parent}{kept}"
        ]

    def troubles(self, *, complete: bool = False) -> list[str]:
        """What ``restore`` will find wrong and do about it, one line each.

        Args:
            complete: every step up to ``step`` should have a line.
        """
        steps = [record.get("step") for _, record in self]
        found = []
        if self.damaged:
            found.append(
                f"{self.path}: {_listed('line', self.damaged)} no JSON of a run: left out; the "
                f"file as it was is kept as {self.path.name}{DAMAGED}"
            )
        if self.cut_short:
            found.append(
                f"{self.path}: the last line was cut short when its process ended: left out"
            )
        if complete and self._step is not None and self.path.exists():
            missing = sorted(set(range(1, self._step + 1)) - set(steps))
            if missing:
                found.append(
                    f"{self.path}: {_listed('step', missing)} missing: their numbers are lost, "
                    "their training is not"
                )
        return found


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _has_step(record: dict[str, Any]) -> bool:
    return isinstance(record.get("step"), int)


def _listed(what: str, numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = f", ... ({len(numbers)} in all)" if len(numbers) > _NAMED else ""
    return f"{what}{'s' if len(numbers) > 1 else ''} {named}{more} {_is(numbers)}"


def _is(numbers: list[int]) -> str:
    return "are" if len(numbers) > 1 else "is"
