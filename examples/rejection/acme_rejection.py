"""Forge plugin: recipe ``rejection``."""

from __future__ import annotations

from pydantic import Field

from forge_core import RecipeComponent, RolloutOptions, Settings, TrainSequence, hookimpl, steps_for


class RejectionSettings(Settings):
    """What is sampled, and what of it is kept."""

    tasks: int = Field(4, ge=1, description="tasks of a step")
    samples: int = Field(8, ge=2, description="episodes sampled for each task")
    threshold: float = Field(0.5, description="least reward of an episode that is trained on")


class Rejection:
    def __init__(self, settings: RejectionSettings) -> None:
        self.settings = settings

    def plan(self, config, dataset_length):
        return steps_for(config.training, self.settings.tasks, dataset_length)

    async def run(self, stage) -> None:
        settings = self.settings
        trainer = await stage.trainer()
        options = RolloutOptions(groups=settings.tasks, group_size=settings.samples)
        async with stage.rollouts(options) as rollouts:
            async for step in stage.steps():
                rollout = await rollouts.take(step)
                step.episodes = rollout.episodes
                good = [each for each in rollout.episodes if each.reward >= settings.threshold]
                step.record({"kept": len(good) / len(rollout.episodes)})
                sequences = [TrainSequence(each.tokens, each.loss_mask) for each in good]
                with step.timed("train"):
                    step.trained(await trainer.train_step.route([sequences]))
                with step.timed("publish"):
                    await stage.publish()


@hookimpl
def forge_recipes():
    yield RecipeComponent(
        name="rejection",
        settings=RejectionSettings,
        build=Rejection,
        requires={"dataset", "rewards", "environment", "generator", "trainer", "loss"},
        defaults={"loss": {"use": "cross_entropy"}, "training": {"batch_size": 32}},
        summary="rejection sampling",
    )
