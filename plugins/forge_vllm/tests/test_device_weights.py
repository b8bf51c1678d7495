"""Weights that reach the engine without leaving the device."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import Forge
from forge_testing.runs import lines_of


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host with two GPUs, torch and vLLM built for them; nothing may be started."""
    installed = importlib.metadata.version
    built = {"torch": "2.13.0", "vllm": "0.32.0"}
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: built.get(name) or installed(name)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("source", "overrides", "transport"),
    [
        # The engine has a process of its own on a GPU; trainer torch shares the controller's.
        ("quickstart-vllm", [], "cuda_ipc"),
        ("qwen3-1.7b", [], "cuda_ipc"),
        ("qwen3-1.7b", ["trainer.device=cpu"], "shm"),
        ("qwen3-1.7b", ["runtime.use=monarch"], "shm"),
        ("qwen3-8b", [], "shm"),  # too large to hold them twice more
        ("quickstart", [], "memory"),
        ("quickstart", ["generator.isolate=true"], "cuda_ipc"),
        ("quickstart", ["generator.isolate=true", "generator.device=cpu"], "shm"),
    ],
)
def test_between_gpus_of_one_host_weights_stay_on_the_device(
    source: str, overrides: list[str], transport: str
) -> None:
    for stage in Forge().resolve(source, overrides).stages:
        assert stage.transport is not None
        assert stage.transport.name == transport


@pytest.mark.parametrize("source", ["quickstart-vllm", "quickstart"])
def test_without_a_gpu_nothing_is_chosen_for_one(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for stage in Forge().resolve(source, ["generator.isolate=true"]).stages:
        assert stage.transport is not None
        assert stage.transport.name == "shm"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_run_with_the_engine_in_its_own_process(
    small_config: dict[str, Any], write_config: Any, run_forge_process: Any, tmp_path: Path
) -> None:
    small_config["generator"]["engine"]["enforce_eager"] = True
    result = run_forge_process("run", str(write_config(small_config)), timeout=600)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    rows = lines_of(run / "metrics.jsonl")
    steps = [row for row in rows if "mismatch/logprob_abs_max" in row]
    assert len(steps) == 3
    # Weights that were torn, late or mixed up would be far from the trainer's.
    assert all(row["mismatch/logprob_abs_max"] < 0.05 for row in steps)
