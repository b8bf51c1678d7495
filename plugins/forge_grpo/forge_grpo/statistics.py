"""What a step's episodes look like, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np

from forge_core import Episode, FloatArray, Group


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the episodes of a rollout; those of rewards over the episodes not left out.

    Args:
        groups: scored, with advantages.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    judged = [episode for episode in episodes if not episode.left_out]
    begun = [episode for episode in episodes if episode.turns]
    failed = [episode for episode in episodes if episode.environment_failure]
    dropped = sum(episode.left_out for episode in failed)
    rewards = [episode.reward for episode in judged] or [0.0]
    lengths = [episode.completion_length for episode in begun] or [0]
    parts = sorted({part for episode in episodes for part in episode.rewards})
    return {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        **{
            f"reward/part/{part}": fmean(
                episode.rewards[part] for episode in episodes if part in episode.rewards
            )
            for part in parts
        },
        "reward/failed": sum(len(episode.failures) for episode in episodes),
        "reward/left_out": len(episodes) - len(judged) - dropped,
        "environment/failed": len(failed),
        "environment/dropped": dropped,
        "completion/length_mean": fmean(lengths),
        "completion/length_max": max(lengths),
        "completion/truncated": fmean(episode.truncated for episode in begun or episodes),
        "groups/zero_variance": sum(
            not any(episode.advantage for episode in group.episodes) for group in groups
        ),
        "groups/total": len(groups),
    }


def mismatch_metrics(
    episodes: Sequence[Episode], logprobs: Sequence[FloatArray]
) -> dict[str, float]:
    """How far the trainer's logprobs lie from the sampler's; what a training step measures itself.

    Args:
        episodes: as they were sampled.
        logprobs: the trainer's, for the same tokens.
    """
    differences = np.concatenate(
        [
            np.abs(np.asarray(row, np.float64) - episode.logprobs)[episode.loss_mask]
            for episode, row in zip(episodes, logprobs, strict=True)
        ]
    )
    return {
        "mismatch/logprob_abs_mean": fmean(differences.tolist()),
        "mismatch/logprob_abs_max": float(differences.max()),
    }
