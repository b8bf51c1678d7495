"""Forge plugin: recipe ``distillation``, on-policy distillation from a teacher in ``models:``.

The student samples, the teacher says how likely it finds each sampled token, and the student learns
to sample what the teacher finds likely: Agarwal et al. (arXiv:2306.13649) with the reverse KL, as
a policy gradient whose advantage is the KL's estimate at each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from forge_core import (
    Episode,
    FloatArray,
    RecipeComponent,
    RecipeContext,
    RecipeService,
    RolloutOptions,
    Settings,
    StageConfig,
    TrainSequence,
    hookimpl,
    steps_for,
)


class DistillationSettings(Settings):
    """Who teaches, and how much is sampled."""

    teacher: str = Field("teacher", description="name of the teacher in models:")
    samples: int = Field(4, ge=1, description="completions sampled for each prompt")


class Distillation:
    """Each step samples ``training.batch_size`` prompts, ``samples`` times each."""

    def __init__(self, settings: DistillationSettings) -> None:
        self.settings = settings

    def services(self, config: StageConfig) -> Mapping[str, RecipeService]:
        # Without a loss a trainer only holds its weights and gives logprobs of them.
        return {"teacher": RecipeService(section="trainer", model=self.settings.teacher)}

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        return steps_for(config.training, _prompts(config), dataset_length)

    async def run(self, stage: RecipeContext) -> None:
        trainer = await stage.trainer()
        teacher = await stage.service("teacher")
        temperature = stage.config.sampling.temperature
        options = RolloutOptions(groups=_prompts(stage.config), group_size=self.settings.samples)
        async with stage.rollouts(options) as rollouts:
            async for step in stage.steps():
                rollout = await rollouts.take(step)
                step.episodes = rollout.episodes
                plain = [TrainSequence(each.tokens, each.loss_mask) for each in rollout.episodes]
                with step.timed("teacher"):
                    taught = await teacher.logprobs.route(plain, temperature=temperature)
                sequences = distilled(rollout.episodes, taught)
                step.record({"teacher/kl": reverse_kl(sequences)})
                with step.timed("train"):
                    result = await trainer.train_step.route([sequences], temperature=temperature)
                step.trained(result)
                with step.timed("publish"):
                    await stage.publish()


def distilled(episodes: Sequence[Episode], taught: Sequence[FloatArray]) -> list[TrainSequence]:
    """Sequences whose advantage at a token is log teacher - log student.

    Args:
        episodes: sampled by the student.
        taught: the teacher's logprob of every token, 0 where it was not sampled. [T] each
    """
    return [
        TrainSequence(
            episode.tokens,
            episode.loss_mask,
            {"advantages": values - episode.logprobs, "sampler_logprobs": episode.logprobs},
        )
        for episode, values in zip(episodes, taught, strict=True)
    ]


def reverse_kl(sequences: Sequence[TrainSequence]) -> float:
    """KL(student || teacher) in nats a token, estimated from the student's samples."""
    import numpy as np

    gains = [np.asarray(each.fields["advantages"])[each.loss_mask] for each in sequences]
    return -float(np.concatenate(gains).mean())


def _prompts(config: StageConfig) -> int:
    assert config.training.batch_size is not None  # the recipe has a default
    return config.training.batch_size


@hookimpl
def forge_recipes():
    yield RecipeComponent(
        name="distillation",
        settings=DistillationSettings,
        build=Distillation,
        requires={"dataset", "environment", "generator", "trainer", "loss"},
        provides={"advantages", "sampler_logprobs"},
        defaults={"loss": {"use": "reinforce"}, "training": {"batch_size": 8}},
        summary="on-policy distillation from a teacher",
    )
