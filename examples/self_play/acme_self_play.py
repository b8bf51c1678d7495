"""Forge plugin: recipe ``self_play``, two policies that learn from playing each other.

Both answer the same problem; the answer nearer to the right one wins. Each policy has a trainer,
generators and published versions of its own, and learns by REINFORCE from its wins and losses.
"""

from __future__ import annotations

import asyncio
from statistics import fmean

from pydantic import Field

from forge_core import (
    RecipeComponent,
    RecipeService,
    Settings,
    TrainSequence,
    UsageError,
    derive_seed,
    hookimpl,
    steps_for,
)


class SelfPlaySettings(Settings):
    """Who plays, and how much."""

    rival: str = Field("", description="name in models: of the other policy; empty: the stage's")
    tasks: int = Field(4, ge=1, description="problems of a step")
    games: int = Field(16, ge=2, description="games played on each problem")


class SelfPlay:
    def __init__(self, settings):
        self.settings = settings

    def services(self, config):
        model = self.settings.rival
        return {
            "rival": RecipeService(
                section="trainer", model=model, loss=config.loss, checkpoint=True
            ),
            "rival_generator": RecipeService(
                section="generator", model=model, weights_from="rival"
            ),
        }

    def plan(self, config, dataset_length):
        if config.sampling.temperature == 0:
            raise UsageError("sampling.temperature: 0 plays the same game again and again")
        return steps_for(config.training, self.settings.tasks, dataset_length)

    async def run(self, stage):
        trainers = [await stage.trainer(), await stage.service("rival")]
        players = [await stage.generator(), await stage.service("rival_generator")]
        async for step in stage.steps():
            with step.timed("play"):
                tasks = stage.take(self.settings.tasks)
                games = [self._play(stage, step, task, players) for task in tasks]
                played = await asyncio.gather(*games)
            ours, theirs = ([one for both in played for one in both[side]] for side in (0, 1))
            with step.timed("train"):
                result, other = await asyncio.gather(
                    trainers[0].train_step.route([ours]), trainers[1].train_step.route([theirs])
                )
            step.trained(result)
            step.record({"rival_loss": other.loss, "score": fmean(both[2] for both in played)})
            with step.timed("publish"):
                await stage.publish()
                await stage.publish("rival")

    async def _play(self, stage, step, task, players):
        """What each policy is to learn from the games on one problem, and the first one's mean
        score, between -1 and 1."""
        from forge_models.prompts import encode_prompt

        prompt = encode_prompt(task.prompt, stage.tokenizer)
        answers = []
        for side, player in enumerate(players):
            seed = derive_seed(stage.seed, step.number, task.id, side)
            sampling = stage.sampling(n=self.settings.games, seed=seed)
            answers.append(await player.generate.route(prompt, sampling))
        errors = [[miss(stage.tokenizer, one, task) for one in side] for side in answers]
        scores = [(b > a) - (b < a) for a, b in zip(*errors, strict=True)]
        mean = fmean(scores)
        learned = [
            [
                TrainSequence(
                    [*prompt, *one.tokens],
                    [False] * len(prompt) + [True] * len(one.tokens),
                    {"advantages": sign * (score - mean)},
                )
                for one, score in zip(side, scores, strict=True)
            ]
            for sign, side in zip((1, -1), answers, strict=True)
        ]
        return *learned, mean


def miss(tokenizer, completion, task):
    """How far an answer is from the right one; what is no number misses by infinity."""
    text = tokenizer.decode(completion.tokens, skip_special_tokens=True).strip()
    return abs(int(text) - int(task.answer)) if text.isdecimal() else float("inf")


@hookimpl
def forge_recipes():
    yield RecipeComponent(
        name="self_play",
        settings=SelfPlaySettings,
        build=SelfPlay,
        requires={"dataset", "generator", "trainer", "loss"},
        provides={"advantages"},
        defaults={"loss": {"use": "reinforce"}},
        summary="two policies that learn from playing each other",
    )
