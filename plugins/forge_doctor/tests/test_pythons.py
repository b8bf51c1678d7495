"""``forge doctor`` says what was tested with the Python that runs it."""

from __future__ import annotations

import platform

import pytest

from forge_doctor import machine


@pytest.mark.parametrize(
    ("installed", "tested"),
    [
        ("3.11.2", "(tested: everything)"),
        ("3.12.1", "(tested: the kernel and the default plugins"),
        ("3.13.0", "(tested: the kernel and the default plugins"),
    ],
)
def test_a_tested_python(monkeypatch: pytest.MonkeyPatch, installed: str, tested: str) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: installed)
    finding = machine.python()
    assert (finding.level, finding.fix) == ("ok", "")
    assert finding.text.startswith(f"{installed} {tested}")


def test_a_python_that_was_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: "3.14.0rc1")
    finding = machine.python()
    assert finding.level == "warning"
    assert finding.text.startswith("3.14.0rc1 (tested with 3.11, 3.12, 3.13), ")
    assert finding.fix == "python3.11 -m venv .venv"


def test_this_python(run_forge_process) -> None:
    printed = run_forge_process("doctor").stdout
    assert " ".join(printed.split()).startswith(f"ok python {platform.python_version()} (tested: ")
