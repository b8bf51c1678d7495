"""Rollouts for any recipe: several optimizer steps for one, resumed in the middle, counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    Forge,
    RecipeComponent,
    RecipeContext,
    RolloutOptions,
    RunStopped,
    Settings,
    TrainSequence,
    hookimpl,
    steps_for,
)
from forge_testing.runs import StopAt, lines_of, small_config, untimed


class Imitation:
    """Trains on the better half of what it samples, in several optimizer steps."""

    def __init__(self, *, steps: int, ahead: int = 0, publishes: bool = True) -> None:
        self.options = RolloutOptions(
            groups=2, group_size=4, optimizer_steps=steps, max_staleness=ahead
        )
        self.publishes = publishes

    def plan(self, config: Any, dataset_length: int) -> int:
        steps = self.options.optimizer_steps
        return steps_for(config.training, 2, dataset_length, optimizer_steps=steps)

    async def run(self, stage: RecipeContext) -> None:
        trainer = await stage.trainer()
        async with stage.rollouts(self.options) as rollouts:
            async for step in stage.steps():
                rollout = await rollouts.take(step)
                best = sorted(rollout.episodes, key=lambda each: each.reward)[4:]
                sequences = [TrainSequence(each.tokens, each.loss_mask) for each in best]
                step.record({"sampled": sum(int(sum(each.tokens)) for each in rollout.episodes)})
                step.trained(await trainer.train_step.route([rollout.part(sequences)]))
                if rollout.is_last and self.publishes:
                    await stage.publish()


def app(recipe: Any, *more: object) -> Forge:
    class Acme:
        @hookimpl
        def forge_recipes(self) -> Any:
            yield RecipeComponent(
                name="imitation",
                settings=Settings,
                build=lambda *_: recipe,
                requires={"dataset", "rewards", "environment", "generator", "trainer", "loss"},
                summary="a test's",
            )

    return Forge(plugins=[Acme(), *more])


def config(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    return small_config(
        recipe={"use": "imitation"},
        loss={"use": "cross_entropy"},
        trackers={"console": None},
        checkpointing={"save_interval": 2, "keep": 9, "output_dir": str(tmp_path)},
        **sections,
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return untimed(lines_of(folder / "metrics.jsonl"))


TRAINING = {"steps": 8, "batch_size": 4, "learning_rate": 0.01, "schedule": "linear"}


def test_several_optimizer_steps_train_one_rollout(tmp_path: Path) -> None:
    summary = app(Imitation(steps=3)).run(config(tmp_path, training=TRAINING))
    rows = rows_of(summary.folder)
    sampled = [row["sampled"] for row in rows]
    assert sampled[0] == sampled[1] == sampled[2] != sampled[3]
    assert ["prompts/dropped" in row for row in rows] == [True, False, False] * 2 + [True, False]
    assert all(row["staleness/max"] == 0 for row in rows)
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx([0.01 * (8 - step) / 8 for step in range(8)])
    assert [row["trained_tokens"] > 0 for row in rows] == [True] * 8


@pytest.mark.parametrize("stop", [3, 5])
def test_a_rollout_goes_on_in_its_middle(tmp_path: Path, stop: int) -> None:
    whole = app(Imitation(steps=3)).run(config(tmp_path / "whole", training=TRAINING))
    stopping = app(Imitation(steps=3), StopAt(stop))
    with pytest.raises(RunStopped):
        stopping.run(config(tmp_path / "stopped", training=TRAINING))
    (folder,) = (tmp_path / "stopped").iterdir()
    (saved,) = (folder / "checkpoints").glob(f"step_{stop - 1}")
    assert (saved / "rollout.json").is_file()  # steps 2 and 4 are in the middle of theirs
    app(Imitation(steps=3)).run(resume=folder)
    assert rows_of(folder) == rows_of(whole.folder)
    weights = Path("checkpoints") / "step_8" / "model.safetensors"
    assert (folder / weights).read_bytes() == (whole.folder / weights).read_bytes()
    assert not (folder / "checkpoints" / "step_6" / "rollout.json").exists()


def test_epochs_count_each_optimizer_step(tmp_path: Path) -> None:
    training = {"num_epochs": 0.1, "batch_size": 4}
    check = app(Imitation(steps=3))
    session_steps = check.run(config(tmp_path, training=training)).steps
    tasks = 100  # sums of two numbers from 0 to 9
    assert session_steps == 3 * (tasks // 10 // 2)


def test_rollouts_are_sampled_ahead_within_the_bound(tmp_path: Path) -> None:
    summary = app(Imitation(steps=2, ahead=1)).run(config(tmp_path, training=TRAINING))
    rows = rows_of(summary.folder)
    assert max(row["staleness/max"] for row in rows) == 1
    assert sum(row.get("groups/dropped", 0) for row in rows) == 0


@pytest.mark.parametrize("ahead", [1, 2])
def test_an_evaluation_within_a_rollout_counts_against_the_bound(
    tmp_path: Path, ahead: int
) -> None:
    held_out = {"use": "arithmetic", "low": 0, "high": 9, "split": "test"}
    summary = app(Imitation(steps=2, ahead=ahead)).run(
        config(
            tmp_path,
            training=TRAINING,
            eval_dataset=held_out,
            evaluation={"interval": 3, "tasks": 2},
        )
    )
    assert [score.step for score in summary.evaluations] == [0, 3, 6, 8]
    rows = rows_of(summary.folder)
    assert max(row["staleness/max"] for row in rows if "groups/dropped" in row) <= ahead
    assert sum(row.get("groups/dropped", 0) for row in rows) == 0


def test_weights_that_have_not_changed_are_not_sent_again(tmp_path: Path) -> None:
    class Publishes:
        seen: list[tuple[int, int, int]]

        def plan(self, config: Any, dataset_length: int) -> int:
            return 2

        async def run(self, stage: RecipeContext) -> None:
            trainer = await stage.trainer()
            await stage.generator()
            self.seen = []
            async for step in stage.steps():
                before = await stage.publish()
                sequence = TrainSequence([1, 2, 3], [False, True, True])
                step.trained(await trainer.train_step.route([[sequence]]))
                after = await stage.publish()
                nothing = TrainSequence([1, 2, 3], [False, False, False])
                idle = await trainer.train_step.route([[nothing]])
                assert idle.trained_tokens == 0
                self.seen.append((before, after, await stage.publish()))
                await asyncio.sleep(0)

    recipe = Publishes()
    summary = app(recipe).run(config(tmp_path, training={"steps": 2, "learning_rate": 0.01}))
    assert recipe.seen == [(0, 1, 1), (1, 2, 2)]
    assert not [line for line in summary.warnings if "equals version" in line]


def test_a_recipe_that_never_publishes_is_warned(tmp_path: Path) -> None:
    summary = app(Imitation(steps=2, publishes=False)).run(config(tmp_path, training=TRAINING))
    (warning,) = summary.warnings
    assert "trains but does not publish" in warning
