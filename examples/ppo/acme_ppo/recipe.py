"""Recipe ``ppo``, proximal policy optimization with a critic.

Schulman et al. (arXiv:1707.06347), with generalized advantage estimation (arXiv:1506.02438). The
clipped loss is the installed ``grpo``, whose ratio is PPO's; the critic is in ``critic.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from acme_ppo.plugin import CRITIC
from acme_ppo.settings import PpoSettings
from forge_core import (
    Episode,
    FloatArray,
    RecipeContext,
    RecipeService,
    RolloutOptions,
    Selection,
    StageConfig,
    TrainSequence,
    steps_for,
)


class Ppo:
    """Samples ``training.batch_size x mini_batches`` episodes, and makes ``mini_batches x epochs``
    optimizer steps of them, of the policy and of the critic."""

    def __init__(self, settings: PpoSettings) -> None:
        self.settings = settings
        self.optimizer_steps = settings.mini_batches * settings.epochs

    def services(self, config: StageConfig) -> Mapping[str, RecipeService]:
        critic = Selection(family="critic", component=CRITIC, settings=self.settings.critic)
        return {"critic": RecipeService(selection=critic, checkpoint=True)}

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        return steps_for(
            config.training,
            self._episodes(config),
            dataset_length,
            optimizer_steps=self.optimizer_steps,
        )

    def _episodes(self, config: StageConfig) -> int:
        """Sampled for one rollout."""
        assert config.training.batch_size is not None  # the recipe has a default
        return config.training.batch_size * self.settings.mini_batches

    async def run(self, stage: RecipeContext) -> None:
        settings = self.settings
        trainer = await stage.trainer()
        critic = await stage.service("critic")
        temperature = stage.config.sampling.temperature
        options = RolloutOptions(
            groups=self._episodes(stage.config),
            group_size=1,
            optimizer_steps=self.optimizer_steps,
        )
        async with stage.rollouts(options) as rollouts:
            async for step in stage.steps():
                rollout = await rollouts.take(step)
                episodes = [each for each in rollout.episodes if not each.left_out]
                if rollout.is_first:
                    step.episodes = rollout.episodes
                    step.record({"reward/mean": float(np.mean([e.reward for e in episodes]))})
                    plain = [TrainSequence(each.tokens, each.loss_mask) for each in episodes]
                    values = await critic.values.route(plain)
                    # The critic's view of the rollout before it learns from it: a checkpoint
                    # between two of its steps needs it too.
                    stage.recipe_state["values"] = [each.tolist() for each in values]
                sequences = self.sequences(episodes, stage.recipe_state["values"])
                # The rollout as often as there are epochs, in one part for each optimizer step.
                part = rollout.part(sequences * settings.epochs)
                with step.timed("train"):
                    step.trained(await trainer.train_step.route([part], temperature=temperature))
                with step.timed("critic"):
                    step.record({"critic/loss": await critic.train_step.route(part)})
                if rollout.is_last:
                    with step.timed("publish"):
                        await stage.publish()

    def sequences(
        self, episodes: Sequence[Episode], values: Sequence[Sequence[float]]
    ) -> list[TrainSequence]:
        """What policy and critic are trained on: advantages have mean 0 and deviation 1."""
        gains = [self.advantages(*each) for each in zip(episodes, values, strict=True)]
        sampled = [gain[each.loss_mask] for gain, each in zip(gains, episodes, strict=True)]
        every = np.concatenate([*sampled, np.zeros(0, np.float32)])
        mean, deviation = (every.mean(), every.std()) if len(every) else (0.0, 1.0)
        return [
            TrainSequence(
                each.tokens,
                each.loss_mask,
                {
                    "advantages": (gain - mean) / (deviation + 1e-6),
                    "returns": gain + np.asarray(value, np.float32),
                    "sampler_logprobs": each.logprobs,
                },
            )
            for each, gain, value in zip(episodes, gains, values, strict=True)
        ]

    def advantages(self, episode: Episode, values: Sequence[float]) -> FloatArray:
        """Generalized advantage estimates (arXiv:1506.02438, eq. 16) of the sampled tokens, 0
        elsewhere; the reward comes with the last of them. [T]"""
        gains = np.zeros(len(values), np.float32)
        gain = following = 0.0
        reward = episode.reward
        for place in np.flatnonzero(episode.loss_mask)[::-1]:
            surprise = reward + self.settings.discount * following - values[place]
            gain = surprise + self.settings.discount * self.settings.trace * gain
            gains[place], following, reward = gain, values[place], 0.0
        return gains
