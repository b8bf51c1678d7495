"""Who holds the reference model changes no number, and one of its own holds nothing but weights."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    Forge,
    ModelSection,
    RewardComponent,
    RunStopped,
    Selection,
    Settings,
    TrainingSection,
    TrainSequence,
    hookimpl,
)
from forge_testing.context import bare_context
from forge_testing.runs import StopAt, lines_of, small_config, untimed


class Varied:
    """A reward with something to learn from in every group."""

    @hookimpl
    def forge_rewards(self) -> Iterator[RewardComponent]:
        yield RewardComponent(name="varied", settings=Settings, build=_build, summary="a hash")


def _build(settings: Settings, context: object) -> Any:
    return _varied


def _varied(sample: Any) -> float:
    return zlib.crc32(sample.completion.encode()) % 100 / 100


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """Two steps of SFT, so that the reference is not the run's first model; then GRPO with KL."""
    return small_config(
        rewards={"varied": {}},
        trackers={"console": None},
        checkpointing={"output_dir": str(tmp_path / "runs"), "save_interval": 1},
        stages={
            "sft": {
                "recipe": {"use": "sft"},
                "training": {"steps": 2, "batch_size": 16, "learning_rate": 0.01},
            },
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 8},
                "loss": {"use": "grpo", "kl_coef": 0.1},
                "training": {"steps": 3, "batch_size": 32, "learning_rate": 0.003},
            },
        },
    )


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return untimed(lines_of(folder / "metrics.jsonl"))


def test_a_reference_of_its_own_changes_no_number(config: dict[str, Any], tmp_path: Path) -> None:
    forge = Forge(plugins=[Varied()])
    held = forge.run(config)
    plain = _metrics(held.folder)
    assert plain[-1]["kl"] > 0
    shared = {"use": "torch", "replicas": 3}
    config["stages"]["grpo"]["reference"] = shared
    replicated = forge.run(config)
    assert [pytest.approx(row, abs=1e-5) for row in plain] == _metrics(replicated.folder)
    last = lines_of(replicated.folder / "metrics.jsonl")[-1]["timing"]
    assert last["reference_calls"] == 3  # each replica had a part of the step's sequences
    assert last["reference_restarts"] == 0

    # Also after a resume: it is what the stage began with, not what it has become.
    config["stages"]["grpo"]["reference"] = {"use": "torch", "isolate": True}
    with pytest.raises(RunStopped):
        Forge(plugins=[Varied(), StopAt(4)]).run(config)
    folders = set((tmp_path / "runs").iterdir()) - {held.folder, replicated.folder}
    resumed = forge.run(resume=folders.pop())
    assert [pytest.approx(row, abs=1e-5) for row in plain] == _metrics(resumed.folder)
    assert (resumed.folder / "logs" / "reference-0-rank0.log").is_file()


@pytest.mark.parametrize("use", ["torch", "titan"])
async def test_a_trainer_that_only_answers_holds_nothing_but_weights(
    use: str, tiny_model: Path
) -> None:
    component = Forge().plugins.catalog.get("trainer", use)
    selection: Selection[Any] = Selection(
        family="trainer", component=component, settings=component.settings()
    )
    context = replace(
        bare_context(), model=ModelSection(path=tiny_model), training=TrainingSection(steps=1)
    )
    trainer = selection.build(context)
    try:
        await trainer.logprobs([TrainSequence([1, 2, 3], [False, True, True])])
        optimizers = [trainer.optimizer] if use == "torch" else list(trainer.optimizers)
        assert optimizers
        assert not any(optimizer.state for optimizer in optimizers)
        parts = [trainer.policy.model] if use == "torch" else trainer.policy.parts
        parameters = [parameter for part in parts for parameter in part.parameters()]
        assert parameters
        assert all(parameter.grad is None for parameter in parameters)
    finally:
        await trainer.close()
