"""The Forge peer: whole runs through ``Forge.run``, in one process, with the reference plugins.

Everything a run does is in the time: services, the weight handshake, rewards in their own process,
hooks. Trackers are off, as they are for TRL.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from peer import Arguments, Timing, parse_arguments, print_result
from workloads import CLIP_EPSILON, MAX_GRAD_NORM, SEED, WORKLOADS, Grpo, Sft, reward

from forge_core import (
    DatasetComponent,
    Episode,
    Forge,
    RewardComponent,
    RewardSample,
    Settings,
    Task,
    hookimpl,
)


class NoSettings(Settings):
    """Nothing to set."""


class Benchmark:
    """A plugin: the workload's data and reward, and a clock at the end of each step."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.step_ends: list[float] = []
        self.tokens: list[int] = []
        self.lengths: list[list[int]] = []
        self._step_lengths: list[int] = []

    @hookimpl
    def forge_datasets(self) -> Iterable[DatasetComponent]:
        yield DatasetComponent(
            name="workload",
            settings=NoSettings,
            build=lambda settings, context: self.tasks,
            summary="the benchmark's tasks",
        )

    @hookimpl
    def forge_rewards(self) -> Iterable[RewardComponent]:
        yield RewardComponent(
            name="vowels",
            settings=NoSettings,
            build=lambda settings, context: vowels,
            summary="the benchmark's reward",
        )

    @hookimpl
    def forge_episode_finished(self, episode: Episode) -> None:
        self._step_lengths.append(episode.completion_length)

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        self.step_ends.append(time.perf_counter())
        self.tokens.append(int(record.metrics["tokens"]))
        self.lengths.append(self._step_lengths)
        self._step_lengths = []

    def timing(self, warmup: int, *, grpo: bool) -> Timing:
        ends = self.step_ends[warmup - 1 :]
        seconds = [after - before for before, after in pairwise(ends)]
        if grpo:
            return Timing(seconds, lengths=self.lengths[warmup:])
        return Timing(seconds, tokens=self.tokens[warmup:])


def vowels(sample: RewardSample) -> float:
    return reward(sample.completion)


def tasks_of(workload: Grpo | Sft, steps: int) -> list[Task]:
    if isinstance(workload, Grpo):
        return [Task(id=str(i), prompt=prompt) for i, prompt in enumerate(workload.prompts)]
    # The first token of a row is never predicted, so it may as well be the prompt.
    texts = workload.texts(steps)
    return [Task(id=str(i), prompt=text[0], response=text[1:]) for i, text in enumerate(texts)]


def config_of(workload: Grpo | Sft, arguments: Arguments, output_dir: str) -> dict[str, Any]:
    training = {
        "steps": arguments.warmup + arguments.steps,
        "learning_rate": workload.learning_rate,
        "max_grad_norm": MAX_GRAD_NORM,
        "seed": SEED,
    }
    config: dict[str, Any] = {
        "model": {"path": arguments.model},
        "dataset": {"use": "workload"},
        "checkpointing": {"output_dir": output_dir},
        "trackers": {"console": None, "jsonl": None},
    }
    if isinstance(workload, Sft):
        training["batch_size"] = workload.rows
        return {**config, "recipe": {"use": "sft"}, "training": training}
    training["batch_size"] = workload.completions
    return {
        **config,
        "recipe": {"use": "grpo", "group_size": workload.group_size},
        "loss": {"use": "grpo", "clip_low": CLIP_EPSILON, "clip_high": CLIP_EPSILON},
        "rewards": {"vowels": {}},
        "sampling": {"max_tokens": workload.max_new_tokens},
        "training": training,
    }


def main() -> None:
    arguments = parse_arguments(__doc__)
    import torch

    torch.set_num_threads(arguments.threads)
    workload = WORKLOADS[arguments.workload]
    plugin = Benchmark(tasks_of(workload, arguments.warmup + arguments.steps))
    with tempfile.TemporaryDirectory() as output_dir:
        Forge(plugins=[plugin]).run(config_of(workload, arguments, output_dir))
    timing = plugin.timing(arguments.warmup, grpo=isinstance(workload, Grpo))
    print_result("forge", arguments, {"run": timing})


if __name__ == "__main__":
    main()
