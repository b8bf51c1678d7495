"""The held-out score of a stage's policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from forge_core import DataError, Evaluation, PromptRefused, RunFailed, derive_seed
from forge_rewards.pool import ENVIRONMENT
from forge_rollouts.episodes import rollout_group

if TYPE_CHECKING:
    from forge_core import Episode, Task
    from forge_run.stage import Stage


async def evaluate(
    stage: Stage, moment: Literal["before", "during", "after"], step: int
) -> Evaluation:
    """Answer ``eval_dataset`` with the published policy and judge it by the config's rewards.

    The same tasks and seeds every time, so that two scores differ by the weights alone. Tasks whose
    prompt the model cannot answer are left out, with a warning.

    Raises:
        DataError: that is all of them.
    """
    section = stage.config.evaluation
    generator = await stage.generator()
    count = min(section.tasks or len(stage.eval_dataset), len(stage.eval_dataset))
    tasks = stage.eval_dataset.readable(range(count))
    count = len(tasks)
    refusals: list[PromptRefused] = []

    async def answer(task: Task) -> list[Episode]:
        try:
            group = await rollout_group(
                task,
                stage.environment,
                section.samples,
                generate=generator.generate.route,
                tokenizer=stage.tokenizer,
                sampling=stage.sampling(temperature=section.temperature, top_p=1.0, top_k=0),
                seed=derive_seed(stage.seed, "evaluation", task.id),
            )
        except PromptRefused as error:
            refusals.append(error)
            return []
        return group.episodes

    answered = await asyncio.gather(*map(answer, tasks))
    episodes = [episode for group in answered for episode in group]
    if refusals:
        message = (
            f"{len(refusals)} of {count} tasks of the evaluation cannot be answered and are not in "
            f"its score: {refusals[0]}"
        )
        if not episodes:
            raise DataError(f"eval_dataset: {message}")
        stage.warn(message)
    await stage.score(episodes, held_out=True)
    played = [each for each in episodes if not (each.environment_failure and each.left_out)]
    if not played:
        raise RunFailed(episodes[0].environment_failure)
    episodes = played
    given = [part for part in (ENVIRONMENT,) if any(part in each.rewards for each in episodes)]
    parts = {
        part: sum(episode.rewards.get(part, 0.0) for episode in episodes) / len(episodes)
        for part in (*stage.config.rewards, *given)
    }
    return Evaluation(
        step=step,
        stage=stage.name,
        moment=moment,
        score=sum(episode.reward for episode in episodes) / len(episodes),
        parts=parts,
        tasks=len({id(episode.task) for episode in episodes}),
    )
