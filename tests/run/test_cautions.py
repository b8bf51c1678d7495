"""What works and is unlikely to be meant is warned of: before a run, by --dry-run and by plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    DistributedSection,
    Forge,
    ModelSection,
    Selection,
    TrainingSection,
)
from forge_run.cautions import cautions
from forge_tensors.precision import HALF_STEP, bfloat16_weights
from forge_testing.conformance.trainer import OPTIMIZER, Nll, make_sequences
from forge_testing.context import select
from forge_testing.runs import small_config
from forge_torch.plugin import TRAINER
from forge_torch.settings import TorchTrainerSettings
from forge_torch.trainer.trainer import TorchTrainer


def context(folder: Path, **training: Any) -> BuildContext:
    return BuildContext(
        model=ModelSection(path=folder, dtype="bfloat16"),
        training=TrainingSection(**training),
        distributed=DistributedSection(),
        loss=select("loss", lambda settings, context: Nll()),
        optimizer=OPTIMIZER,
    )


@pytest.mark.parametrize("trainer", ["torch", "titan"])
@pytest.mark.parametrize(
    ("dtype", "rate", "warned"),
    [
        ("bfloat16", 1e-6, True),
        ("bfloat16", 1e-4, True),
        ("bfloat16", 1e-3, False),
        ("bfloat16", 0, False),
        ("float32", 1e-6, False),
    ],
)
def test_low_learning_rates_for_bfloat16_weights(
    trainer: str, dtype: str, rate: float, warned: bool
) -> None:
    overrides = {"model.dtype": dtype, "training.learning_rate": rate, "trainer.use": trainer}
    lines = cautions(Forge().resolve("quickstart", overrides))
    assert len(lines) == warned
    for line in lines:
        assert line.startswith("model.dtype: bfloat16 keeps no float32 copy of the weights")
        assert f"training.learning_rate {rate:g}" in line
        assert "stage 'sft', 'grpo'" in line


async def test_updates_of_large_bfloat16_weights_are_lost(tiny_model: Path) -> None:
    """What the warning says is so: none of the weights that it speaks of moves."""
    given = context(tiny_model, learning_rate=1e-5)
    assert bfloat16_weights(given)
    settings = TorchTrainerSettings(device="cpu")
    trainer = Selection(family="trainer", component=TRAINER, settings=settings).build(given)
    assert isinstance(trainer, TorchTrainer)
    before = [p.detach().clone() for p in trainer.policy.model.parameters()]
    await trainer.train_step([make_sequences(tiny_model)])  # the first step of Adam: +-rate
    moved = 0
    for old, new in zip(before, trainer.policy.model.parameters(), strict=True):
        large = old.abs() > 1e-5 / HALF_STEP
        assert not (old != new)[large].any()
        moved += int((old != new)[~large].sum())
    assert moved > 100
    await trainer.close()


@pytest.mark.parametrize("command", [["run", "--dry-run"], ["plan"]], ids=" ".join)
def test_it_is_said_before_anything_starts(
    write_config: Any, run_forge: Any, command: list[str]
) -> None:
    name, *flags = command
    keys = ["model.dtype=bfloat16", "training.learning_rate=1e-6"]
    result = run_forge(name, str(write_config(small_config())), *keys, *flags)
    assert result.exit_code == 0, result.stderr
    assert "warning: model.dtype: bfloat16 keeps no float32 copy" in result.stdout


def test_it_is_said_when_a_run_starts(tmp_path: Path) -> None:
    summary = Forge().run(
        small_config(),
        {
            "model.dtype": "bfloat16",
            "training.learning_rate": 1e-6,
            "training.steps": 1,
            "checkpointing.output_dir": str(tmp_path),
        },
    )
    events = [json.loads(line) for line in (summary.folder / "events.jsonl").open()]
    assert any("bfloat16 keeps no float32 copy" in event["message"] for event in events)
