"""Words that ``docs/glossary.md`` and plain English have better ones for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("forge_core", "plugins", "docs", "tests", "benchmarks", "scripts", "examples")
ENDINGS = {".py", ".md", ".sh", ".yaml"}
AVOIDED = re.compile(
    r"\b(told of|told apart|told at once|whoever|to be had|anew|in the making|nobody|lacks|"
    r"mend|hopeless|lacking|passed over|in vain|came of it|the floors?|ground floor|"
    r"stands? (in (?!for)|behind |under |there|beside |lowest|at ))\b",
    re.I,
)
LEFT_OUT = {
    "CHANGELOG.md": "names what was renamed",
    "tests/docs/test_wording.py": "has the words",
    "tests/chaos/config_fuzz.py": "an anchor that does not exist",
}


def files() -> list[Path]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return [path for path in [*inside, *ROOT.glob("*.md")] if path.suffix in ENDINGS]


def test_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files()
        if str(path.relative_to(ROOT)) not in LEFT_OUT
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := AVOIDED.search(line))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ["Told of each.", "a file that lacks", "nobody waits"])
def test_the_words_are_found(line: str) -> None:
    assert AVOIDED.search(line)
