"""Code of a model folder runs in the engine only where ``model.trust_remote_code`` asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forge_core import ModelInit, ModelSection
from forge_models.folder import materialize
from forge_testing.command import process_environ
from forge_testing.foreign_code import with_foreign_model
from forge_testing.shapes import tiny_shape


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran.txt"


def _generate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``forge generate`` on the engine, answered "y" whatever it asks."""
    command = ["generate", str(folder), "1+1=", "--generator", "vllm", "--max-tokens", "3"]
    return subprocess.run(
        [sys.executable, "-m", "forge_core", *command, *arguments],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        env=process_environ() | {"HF_MODULES_CACHE": str(folder.parent / "modules")},
        timeout=300,
        check=False,
    )


def test_code_of_a_model_folder(tmp_path: Path, marker: Path) -> None:
    config = tiny_shape(head_dim=32, max_position_embeddings=64)
    init = ModelInit(characters="0123456789+=", config=config)
    made = materialize(ModelSection(init=init), tmp_path / "made", seed=0)
    folder = with_foreign_model(made, tmp_path / "foreign", marker)
    refused = _generate(folder, "generator.engine.trust_remote_code=true")
    assert refused.returncode == 2, refused.stderr
    assert "set model.trust_remote_code=true if you trust it" in refused.stderr
    assert not marker.exists()
    trusted = _generate(folder, "model.trust_remote_code=true")
    assert trusted.returncode == 0, trusted.stderr
    assert marker.exists()
