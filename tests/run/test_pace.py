"""Recipes that train, sample or publish at another pace than a stage assumes are warned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    Forge,
    RecipeComponent,
    RunFailed,
    Settings,
    Step,
    StepResult,
    TrainSequence,
    hookimpl,
)
from forge_models.prompts import encode_prompt
from forge_testing.runs import lines_of, small_config


class Recipe:
    """Samples once and trains on fixed tokens in each step.

    Args:
        publishes: after each step.
        trains: optimizer steps in each step.
        tokens: that a step says it trained on; None: it says nothing.
    """

    def __init__(self, *, publishes: bool, trains: int = 1, tokens: int | None = None) -> None:
        self.publishes = publishes
        self.trains = trains
        self.tokens = tokens

    def plan(self, config: Any, dataset_length: int) -> int:
        steps: int = config.training.steps
        return steps

    async def run(self, stage: Any) -> None:
        trainer, generator = await stage.trainer(), await stage.generator()
        tokens = encode_prompt("1+1=", stage.tokenizer)
        async for step in stage.steps():
            await generator.generate.route(tokens, stage.sampling(seed=step.number))
            sequence = TrainSequence(tokens=[*tokens, 3], loss_mask=[False] * len(tokens) + [True])
            for _ in range(self.trains):
                await trainer.train_step.route([[sequence]])
            if self.tokens is not None:
                step.record({"trained_tokens": self.tokens})
            if self.publishes:
                await stage.publish()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """``run(recipe, steps=, **sections)``: the messages of the run's warnings."""

    def warnings(recipe: Recipe, *, steps: int = 3, **sections: Any) -> list[str]:
        class Acme:
            @hookimpl
            def forge_recipes(self) -> Any:
                yield RecipeComponent(
                    name="mine",
                    settings=Settings,
                    build=lambda *_: recipe,
                    requires={"dataset", "trainer", "loss", "generator"},
                    summary="a test's",
                )

        training = {"steps": steps, "batch_size": 2, **sections.pop("training", {})}
        config = small_config(
            recipe={"use": "mine"},
            loss={"use": "cross_entropy"},
            training=training,
            trackers={"console": None},
            checkpointing={"output_dir": str(tmp_path / "runs")},
            **sections,
        )
        summary = Forge(plugins=[Acme()]).run(config)
        events = lines_of(summary.folder / "events.jsonl")
        said = [event["message"] for event in events if event["kind"] == "warning"]
        return [message for message in said if not message.startswith("rewards: does nothing")]

    return warnings


def test_a_recipe_that_publishes_hears_nothing(run: Any) -> None:
    """Also where an evaluation publishes for itself first, at each second step."""
    evaluated = {
        "eval_dataset": {"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        "evaluation": {"interval": 1, "tasks": 1},
    }
    assert run(Recipe(publishes=True)) == []
    assert run(Recipe(publishes=True, trains=0), **evaluated) == []


def test_weights_that_training_did_not_change_are_told(run: Any) -> None:
    assert "version 1 equals version 0: the last steps changed no weight" in run(
        Recipe(publishes=True), training={"learning_rate": 1e-30}
    )


def test_a_recipe_that_never_publishes_is_told(run: Any) -> None:
    (warning,) = run(Recipe(publishes=False))
    assert "recipe 'mine' (stage 'mine') trains but does not publish" in warning
    assert "the last 2 steps sampled with version 0, which is 3 optimizer steps old" in warning
    assert "await stage.publish()" in warning


def test_a_recipe_without_any_signal_has_nothing_to_publish(run: Any) -> None:
    assert run(Recipe(publishes=False, tokens=0)) == []
    assert len(run(Recipe(publishes=False, tokens=1))) == 1


def test_a_schedule_that_would_end_too_early_stops_the_run(run: Any) -> None:
    with pytest.raises(RunFailed) as caught:
        run(Recipe(publishes=True, trains=2), training={"schedule": "linear"})
    assert "made 2 optimizer steps in 1 of the stage's steps" in str(caught.value)
    assert "training.schedule=null" in str(caught.value)
    assert run(Recipe(publishes=True, trains=2), training={"schedule": "constant"}) == []


def test_rates_are_those_of_the_whole_block_wherever_they_are_recorded() -> None:
    step = Step(1, 1)
    result = StepResult(loss=0.5, grad_norm=1, learning_rate=0.1, tokens=40, trained_tokens=8)
    with step.timed("train"):
        step.trained(result)
    step.finish()
    assert step.timing["train_tokens_per_second"] > 0
    assert step.timing["train_tokens_per_second"] == 40 / step.timing["train_seconds"]
    assert "trained_tokens_per_second" not in step.timing
