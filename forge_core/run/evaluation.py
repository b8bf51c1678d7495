"""The held-out score of a stage's policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from forge_core.rollout import rollout_group
from forge_core.run.records import Evaluation
from forge_core.seeding import derive_seed

if TYPE_CHECKING:
    from forge_core.run.stage import Stage


async def evaluate(
    stage: Stage, moment: Literal["before", "during", "after"], step: int
) -> Evaluation:
    """Answer ``eval_dataset`` with the published policy and judge it by the config's rewards.

    The same tasks and seeds every time, so that two scores differ by the weights alone.
    """
    section = stage.config.evaluation
    policy = await stage.policy()
    count = min(section.tasks or len(stage.eval_dataset), len(stage.eval_dataset))
    tasks = [stage.eval_dataset[index] for index in range(count)]
    groups = await asyncio.gather(
        *(
            rollout_group(
                task,
                stage.environment,
                section.samples,
                generate=policy.generate.route,
                tokenizer=stage.tokenizer,
                sampling=stage.sampling(temperature=section.temperature, top_p=1.0, top_k=0),
                seed=derive_seed(stage.seed, "evaluation", task.id),
            )
            for task in tasks
        )
    )
    episodes = [episode for group in groups for episode in group.episodes]
    await stage.score(episodes)
    parts = {
        part: sum(episode.rewards.get(part, 0.0) for episode in episodes) / len(episodes)
        for part in stage.config.rewards
    }
    return Evaluation(
        step=step,
        stage=stage.name,
        moment=moment,
        score=sum(episode.reward for episode in episodes) / len(episodes),
        parts=parts,
        tasks=count,
    )
