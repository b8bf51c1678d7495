"""What a step's episodes look like, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from forge_core import Episode, Group


def rollout_metrics(groups: Sequence[Group], *, current_version: int) -> dict[str, float]:
    """Means over the episodes of a step; those of rewards over the episodes not left out.

    Args:
        groups: scored, with advantages.
        current_version: of the weights about to be trained. A token's staleness is how many
            versions the weights that sampled it lie behind: the oldest one's and the mean.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    judged = [episode for episode in episodes if not episode.left_out]
    begun = [episode for episode in episodes if episode.turns]
    failed = [episode for episode in episodes if episode.environment_failure]
    dropped = sum(episode.left_out for episode in failed)
    rewards = [episode.reward for episode in judged] or [0.0]
    lengths = [episode.completion_length for episode in begun] or [0]
    staleness = [
        current_version - version
        for episode in episodes
        for version in episode.versions
        if version >= 0
    ]
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
        "staleness/max": max(staleness, default=0),
        "staleness/mean": fmean(staleness) if staleness else 0,
    }


def mismatch_metrics(
    episodes: Sequence[Episode], logprobs: Sequence[Sequence[float]]
) -> dict[str, float]:
    """How far the trainer's logprobs lie from the sampler's; what a training step measures itself.

    Args:
        episodes: as they were sampled.
        logprobs: the trainer's, for the same tokens.
    """
    differences = [
        abs(trainer - sampler)
        for episode, row in zip(episodes, logprobs, strict=True)
        for trained, trainer, sampler in zip(episode.loss_mask, row, episode.logprobs, strict=True)
        if trained
    ]
    return {
        "mismatch/logprob_abs_mean": fmean(differences),
        "mismatch/logprob_abs_max": max(differences),
    }
