"""Recipe ``grpo``: group relative policy optimization (DeepSeekMath, arXiv:2402.03300).

Read ``GrpoRecipe.run`` from top to bottom: it is the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from forge_core import (
    Episode,
    Group,
    RolloutOptions,
    StepResult,
    TrainSequence,
    UsageError,
    steps_for,
)
from forge_grpo.advantages import scale_advantages
from forge_grpo.prompt_check import answerable, check_prompts
from forge_grpo.statistics import mismatch_metrics, rollout_metrics
from forge_models.shape import model_window

if TYPE_CHECKING:
    from forge_core import Dataset, RecipeContext, ServiceHandle, StageConfig, Step
    from forge_grpo.settings import GrpoSettings

QUIET_STEPS = 10
"""Steps in a row without any signal after which the log says so in words."""

CLIPPED_ON_POLICY = 0.1
"""``clip_fraction`` of a strictly on-policy step from which the log speaks of it in words."""


class GrpoRecipe:
    """Each step trains ``batch_size x gradient_accumulation_steps`` episodes; ``optimizer_steps``
    times as many are sampled at a time."""

    def __init__(self, settings: GrpoSettings) -> None:
        self.settings = settings

    def usable_tasks(self, config: StageConfig, dataset: Dataset) -> int:
        """Tasks that are not left out for their prompts. Counted only where epochs are."""
        if self.settings.overlong_prompts == "fail" or config.training.num_epochs is None:
            return len(dataset)
        from forge_models.folder import model_tokenizer

        return answerable(dataset, model_tokenizer(config.model), model_window(config.model))

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        steps = self.settings.optimizer_steps
        episodes = _episodes_per_step(config) * steps
        if episodes % self.settings.group_size:
            several = f" x recipe.optimizer_steps {steps}" if steps > 1 else ""
            raise UsageError(
                f"recipe.group_size: {self.settings.group_size} does not divide the "
                f"{episodes} episodes of a {'rollout' if several else 'step'} (batch_size x "
                f"gradient_accumulation_steps{several})"
            )
        sampling = config.sampling
        if sampling.temperature == 0:
            raise UsageError("sampling.temperature: 0 samples no variety to learn from")
        if sampling.top_p < 1 or sampling.top_k > 0:
            # The sampler would report logprobs of the truncated distribution and the trainer those
            # of the whole one: their ratio would be biased.
            raise UsageError("sampling.top_p, sampling.top_k: recipe grpo samples without them")
        self._check_staleness(config)
        self._advantage_scale(config)
        tasks = episodes // self.settings.group_size
        return steps_for(config.training, tasks, dataset_length, optimizer_steps=steps)

    def _check_staleness(self, config: StageConfig) -> None:
        """What is sampled ahead is kept somewhere, and corrected for by somebody."""
        if self.settings.max_staleness == 0 and config.replay_buffer_placement.own_processes:
            raise UsageError(
                "replay_buffer: nothing waits in it with recipe.max_staleness=0, where each "
                "step samples its own groups"
            )
        key, off = ("max_staleness", 0) if self.settings.max_staleness else ("optimizer_steps", 1)
        if getattr(self.settings, key) == off or config.loss is None:
            return
        if "sampler_logprobs" not in config.loss.needs:
            raise UsageError(
                f"recipe.{key}: loss {config.loss.name!r} does not correct for tokens that older "
                "weights sampled (it needs no sampler_logprobs); use loss grpo or gspo, or "
                f"{key}={off}"
            )

    async def run(self, stage: RecipeContext) -> None:
        trainer = await stage.trainer()
        generator = await stage.generator()
        if self.settings.overlong_prompts == "fail":
            await check_prompts(stage, generator)
        async with stage.rollouts(self._rollout_options(stage.config)) as rollouts:
            async for step in stage.steps():
                rollout = await rollouts.take(step)
                kept = self._assign_advantages(stage, rollout.groups)
                if rollout.is_first:
                    step.episodes = rollout.episodes
                    step.record(rollout_metrics(rollout.groups))
                    self._warn_if_no_signal(stage, step, kept)
                with step.timed("train"):
                    result = await self._train(stage, trainer, rollout.part(kept))
                step.trained(result)
                if rollout.is_first:
                    self._warn_if_rounding_is_clipped(stage, step)
                if kept and rollout.is_last:
                    with step.timed("publish"):
                        await stage.publish()
                elif not kept:
                    # Nothing was trained; sampler and trainer are compared all the same.
                    sampled_any = [each for each in rollout.episodes if each.completion_length]
                    some = sampled_any[: self.settings.group_size]
                    step.record(await _mismatch(stage, trainer, some) if some else {})

    def _rollout_options(self, config: StageConfig) -> RolloutOptions:
        settings = self.settings
        episodes = _episodes_per_step(config) * settings.optimizer_steps
        return RolloutOptions(
            groups=episodes // settings.group_size,
            group_size=settings.group_size,
            optimizer_steps=settings.optimizer_steps,
            max_staleness=settings.max_staleness,
            refused=settings.overlong_prompts,
            refused_key="recipe.overlong_prompts",
        )

    def _advantage_scale(self, config: StageConfig) -> Literal["std", "none"]:
        """What advantages are divided by."""
        if self.settings.advantage_scale is not None:
            return self.settings.advantage_scale
        assert config.advantage is not None  # it is among ``requires``
        return config.advantage.scale

    def _assign_advantages(self, stage: RecipeContext, groups: Sequence[Group]) -> list[Episode]:
        """Set the advantage of every episode that was judged; the episodes to train on."""
        scale = self._advantage_scale(stage.config)
        kept: list[Episode] = []
        for group in _sides(groups):
            judged = [episode for episode in group if not episode.left_out]
            if not judged:
                continue
            rewards = [episode.reward for episode in judged]
            advantages = scale_advantages(stage.advantages(rewards), rewards, scale)
            for episode, advantage in zip(judged, advantages, strict=True):
                episode.advantage = advantage
            if any(advantages) or self.settings.zero_variance == "keep":
                kept += judged
        return kept

    async def _train(
        self, stage: RecipeContext, trainer: ServiceHandle, episodes: Sequence[Episode]
    ) -> StepResult:
        """One optimizer step; without episodes it changes no weight and the schedule goes on."""
        temperature = stage.config.sampling.temperature
        sequences = [train_sequence(episode) for episode in episodes]
        loss = stage.config.loss
        needs = loss.needs if loss is not None else frozenset[str]()
        if sequences and "reference_logprobs" in needs:
            sequences = await _with_reference(stage, sequences, temperature)
        micro_batches = _split(sequences, stage.config.training.gradient_accumulation_steps)
        result: StepResult = await trainer.train_step.route(micro_batches, temperature=temperature)
        return result

    def _warn_if_no_signal(self, stage: RecipeContext, step: Step, kept: Sequence[Episode]) -> None:
        learns = any(episode.advantage for episode in kept)
        quiet = 0 if learns else stage.recipe_state.get("steps_without_signal", 0) + 1
        stage.recipe_state["steps_without_signal"] = quiet
        if quiet == QUIET_STEPS:
            mean = step.metrics["reward/mean"]
            stage.warn(
                f"no group had two different rewards for {QUIET_STEPS} steps (mean {mean:.2f}): "
                "nothing is learned; the tasks are too easy, too hard, or the reward is constant",
            )

    def _warn_if_rounding_is_clipped(self, stage: RecipeContext, step: Step) -> None:
        """The weights that sampled a token give it a ratio of 1; what a clip then finds outside its
        range is the difference between two engines. Said once."""
        clipped = step.metrics.get("clip_fraction", 0.0)
        on_policy = step.metrics["staleness/max"] == 0
        warned = stage.recipe_state.get("warned_of_clipping", False)
        if warned or not on_policy or clipped < CLIPPED_ON_POLICY:
            return
        stage.recipe_state["warned_of_clipping"] = True
        mismatch = step.metrics.get("mismatch/logprob_abs_mean", 0.0)
        loss = stage.config.loss.name if stage.config.loss is not None else "loss"
        stage.warn(
            f"loss {loss!r} clips {clipped:.0%} of a step that the current weights sampled, where "
            "every ratio should be 1: the difference between sampler and trainer (mismatch/"
            f"logprob_abs_mean {mismatch:.2g}) is of the order of the clip range. What is left out "
            "is left out by rounding; widen loss.clip_low and loss.clip_high, or compute both in "
            "float32",
        )


def _sides(groups: Sequence[Group]) -> list[list[Episode]]:
    """The episodes that are compared: of one group, and of one agent where there are several."""
    sides: dict[tuple[int, str], list[Episode]] = {}
    for index, group in enumerate(groups):
        for episode in group.episodes:
            sides.setdefault((index, episode.agent), []).append(episode)
    return list(sides.values())


def train_sequence(episode: Episode) -> TrainSequence:
    """The episode's own tokens and logprobs; nothing is tokenized again."""
    return TrainSequence(
        tokens=episode.tokens,
        loss_mask=episode.loss_mask,
        fields={"advantages": episode.advantage, "sampler_logprobs": episode.logprobs},
    )


async def _with_reference(
    stage: RecipeContext, sequences: Sequence[TrainSequence], temperature: float
) -> list[TrainSequence]:
    logprobs = await stage.reference_logprobs(sequences, temperature=temperature)
    return [
        replace(sequence, fields={**sequence.fields, "reference_logprobs": values})
        for sequence, values in zip(sequences, logprobs, strict=True)
    ]


async def _mismatch(
    stage: RecipeContext, trainer: ServiceHandle, episodes: Sequence[Episode]
) -> dict[str, float]:
    logprobs = await trainer.logprobs.route(
        [train_sequence(episode) for episode in episodes],
        temperature=stage.config.sampling.temperature,
    )
    return mismatch_metrics(episodes, logprobs)


def _episodes_per_step(config: StageConfig) -> int:
    assert config.training.batch_size is not None
    return config.training.batch_size * config.training.gradient_accumulation_steps


def _split(sequences: Sequence[TrainSequence], parts: int) -> list[list[TrainSequence]]:
    """Micro-batches of equal size, but for one sequence; fewer where there are fewer sequences."""
    bounds = [len(sequences) * part // parts for part in range(parts + 1)]
    return [list(sequences[begin:end]) for begin, end in pairwise(bounds) if begin < end]
