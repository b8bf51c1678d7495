"""Damage to files of JSON lines is found, said, and left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_run.trackers.lines import JsonLines


def written(folder: Path, content: bytes) -> Path:
    path = folder / "metrics.jsonl"
    path.write_bytes(content)
    return path


GOOD = b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


@pytest.mark.parametrize(
    ("content", "kept", "said"),
    [
        (GOOD, GOOD, []),
        (GOOD[:-1], GOOD, []),  # whole, but for its end
        (b"", b"", ["steps 1, 2, 3 are missing: their numbers are lost, their training is not"]),
        (
            GOOD + b'{"step": 4, "lo',
            GOOD,
            ["the last line was cut short when its process ended: left out"],
        ),
        (
            b'{"step": 1}\n{"st\xff\x00p": 2}\n{"step": 3}\n',
            b'{"step": 1}\n{"step": 3}\n',
            [
                "line 2 is no JSON of a run: left out; the file as it was is kept as "
                "metrics.jsonl.damaged",
                "step 2 is missing: their numbers are lost, their training is not",
            ],
        ),
        (
            b'[]\n7\n{}\n{"step": "1"}\n\n' + GOOD,
            GOOD,
            [
                "lines 1, 2, 3, ... (5 in all) are no JSON of a run: left out; the file as it was "
                "is kept as metrics.jsonl.damaged"
            ],
        ),
        (b"[" * 100_000 + b"\n" + GOOD, GOOD, ["line 1 is no JSON of a run: left out; the file"]),
    ],
)
def test_damage_is_said_and_left_out(
    tmp_path: Path, content: bytes, kept: bytes, said: list[str]
) -> None:
    path = written(tmp_path, content)
    lines = JsonLines(path, 3)
    troubles = lines.troubles(complete=True)
    assert len(troubles) == len(said)
    assert all(
        line.startswith(f"{path}: {expected}")
        for line, expected in zip(troubles, said, strict=True)
    )
    lines.restore()
    assert path.read_bytes() == kept
    copy = path.with_name("metrics.jsonl.damaged")
    assert copy.exists() == any("is kept as" in line for line in troubles)
    if copy.exists():
        assert copy.read_bytes() == content
    assert not lines.troubles()


def test_later_steps_are_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert JsonLines(path, 2).troubles(complete=True) == []
    JsonLines(path, 2).restore()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_file_that_is_still_open_elsewhere_is_left_behind(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with path.open("ab") as late:
        JsonLines(path, 3).restore()
        late.write(b"late\n")
    assert path.read_bytes() == GOOD


def test_no_file_is_no_damage(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", 3)
    assert lines.troubles(complete=True) == []
    lines.restore()
    assert not list(tmp_path.iterdir())
