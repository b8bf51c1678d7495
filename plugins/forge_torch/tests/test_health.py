"""Rows of ``forge doctor``."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_torch import health


def test_shared_memory_too_small_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [finding] = health.shared_memory(tmp_path / "shm")
    assert finding.level == "warning"
    monkeypatch.setattr(health, "SHM_ENOUGH", 2**60)
    [finding] = health.shared_memory(tmp_path)
    assert finding.level == "warning"
    assert f"size=8G {tmp_path}" in finding.fix
