"""A made-up run that learns addition, to try trackers with.

``replay`` plays it to trackers in no time; ``plugins/forge_console/demo.py`` on a terminal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from forge_core import (
    Completion,
    Episode,
    Evaluation,
    Event,
    RunInfo,
    StageInfo,
    StepRecord,
    Summary,
    Task,
    Tracker,
    Turn,
)

LOSSES = {"sft": "cross_entropy", "grpo": "grpo"}
STAGES = (
    StageInfo(name="sft", recipe="sft", steps=120),
    StageInfo(name="grpo", recipe="grpo", steps=180),
)
COMPONENTS = {
    "generator": "torch",
    "trainer": "torch",
    "loss": "cross_entropy",
    "transport": "memory",
    "runtime": "local",
}


class Clock(Protocol):
    """Seconds since the epoch."""

    def __call__(self) -> float: ...

    def wait(self, seconds: float) -> None: ...


class StoppedClock:
    """Its time passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def replay(
    trackers: Sequence[Tracker],
    folder: Path,
    *,
    step_seconds: float = 0.2,
    clock: Clock | None = None,
    outcome: str = "finished",
) -> Summary:
    """Play a run of two stages to trackers.

    Args:
        step_seconds: mean length of a step.
        clock: waits for each step; default: one whose time passes at once.
        outcome: ``finished``, or ``failed`` in the middle of the second stage.
    """
    clock = StoppedClock() if clock is None else clock
    rng = random.Random(0)
    began = clock()
    for tracker in trackers:
        tracker.start(RunInfo(name="demo", folder=folder, stages=STAGES, components=COMPONENTS))
    evaluations: list[Evaluation] = []
    record: StepRecord | None = None
    checkpoint: Path | None = None

    def tell(kind: str, message: str, **data: object) -> None:
        for tracker in trackers:
            tracker.event(Event(time=clock(), kind=kind, message=message, data=data))

    def evaluate(stage: str, moment: str, step: int, score: float) -> None:
        evaluations.append(
            Evaluation(
                step=step, stage=stage, moment=moment, score=score,  # type: ignore[arg-type]
                parts={"exact_match": score}, tasks=200,
            )
        )  # fmt: skip
        tell(
            "evaluation",
            f"{stage}: held-out score {score:.3f} {moment} training (200 tasks, step {step})",
            stage=stage, moment=moment, step=step, score=score, parts={"exact_match": score},
        )  # fmt: skip

    step, score = 0, 0.0
    for index, stage in enumerate(STAGES):
        assert stage.steps is not None
        tell(
            "stage_started",
            f"stage {stage.name} ({index + 1} of 2): recipe {stage.recipe}, {stage.steps} steps",
            stage=stage.name, index=index, steps=stage.steps,
            components={**COMPONENTS, "loss": LOSSES[stage.recipe]},
        )  # fmt: skip
        evaluate(stage.name, "before", step, score)
        for stage_step in range(1, stage.steps + 1):
            step += 1
            done = stage_step / stage.steps
            seconds = step_seconds * rng.uniform(0.8, 1.2)
            clock.wait(seconds)
            make = _sft_metrics if stage.recipe == "sft" else _grpo_metrics
            metrics, timing = make(done, rng, seconds)
            record = StepRecord(
                step=step,
                stage=stage.name,
                stage_step=stage_step,
                stage_steps=stage.steps,
                metrics=metrics,
                timing={"step_seconds": seconds, **timing},
            )
            episodes = (
                [_episode(rng, metrics["reward/mean"]) for _ in range(8)]
                if stage.recipe == "grpo"
                else []
            )
            for tracker in trackers:
                tracker.step(record)
                if episodes:
                    tracker.episodes(step, episodes)
            if stage.recipe == "sft":
                score = 0.55 * (1 - math.exp(-4 * done))
            else:
                score = 0.55 + 0.42 * (1 - math.exp(-3 * done))
            if stage_step % 30 == 0 and stage_step < stage.steps:
                evaluate(stage.name, "during", step, score)
            if step == 150:
                tell("reward_failed", "exact_match gave no answer within 2.0 s: reward 0 by rule")
            if step == 200 and outcome == "failed":
                tell("failed", "trainer torch: the loss is nan at step 201")
                break
        else:
            checkpoint = folder / "checkpoints" / f"step_{step}"
            tell("checkpoint", f"checkpoint step_{step}", step=step)
            evaluate(stage.name, "after", step, score)
    assert record is not None
    summary = Summary(
        outcome="finished" if outcome == "finished" else "failed",
        exit_code=0 if outcome == "finished" else 1,
        message=(
            "the target was reached"
            if outcome == "finished"
            else "trainer torch: the loss is nan at step 201"
        ),
        folder=folder,
        steps=step,
        seconds=clock() - began,
        metrics=record.metrics,
        evaluations=evaluations,
        checkpoint=checkpoint,
    )
    for tracker in trackers:
        tracker.finish(summary)
    return summary


Numbers = dict[str, float]


def _sft_metrics(done: float, rng: random.Random, seconds: float) -> tuple[Numbers, Numbers]:
    metrics = {
        "loss": 2.4 * math.exp(-3 * done) + 0.2 + rng.gauss(0, 0.03),
        "grad_norm": 1.5 * math.exp(-2 * done) + rng.uniform(0.1, 0.2),
        "learning_rate": 3e-3 * min(1.0, 10 * done),
        "tokens": 4096.0,
        "trained_tokens": 1024.0,
    }
    return metrics, {"train_seconds": seconds * 0.9, "train_tokens_per_second": 4096 / seconds}


def _grpo_metrics(done: float, rng: random.Random, seconds: float) -> tuple[Numbers, Numbers]:
    metrics = {
        "loss": -0.02 * (1 - done) + rng.gauss(0, 0.004),
        "grad_norm": 0.6 + rng.gauss(0, 0.05),
        "learning_rate": 1e-4,
        "reward/mean": 0.5 + 0.45 * (1 - math.exp(-3 * done)) + rng.gauss(0, 0.02),
        "entropy": 0.7 * math.exp(-2 * done) + 0.05,
        "kl": 0.03 * done,
        "mismatch/logprob_abs_mean": 1.2e-6 * rng.uniform(0.5, 1.5),
        "staleness/max": 1.0,
        "completion/length_mean": 4 + rng.gauss(0, 0.1),
        "groups/zero_variance": float(int(20 * done)),
    }
    return metrics, {
        "generate_seconds": seconds * 0.5,
        "train_seconds": seconds * 0.4,
        "generated_tokens_per_second": 2000 / seconds,
        "train_tokens_per_second": 3000 / seconds,
    }


def _episode(rng: random.Random, mean: float) -> Episode:
    a, b = rng.randrange(10, 99), rng.randrange(10, 99)
    right = rng.random() < mean
    text = str(a + b if right else a + b + rng.choice([-10, -1, 1, 10]))
    prompt, tokens = f"{a}+{b}=", [ord(char) for char in text]
    completion = Completion(tokens, [-0.1] * len(tokens), [3] * len(tokens), "stop")
    return Episode(
        task=Task(id=f"add/{a}+{b}", prompt=prompt, answer=str(a + b)),
        turns=[
            Turn("prompt", [ord(char) for char in prompt]),
            Turn("completion", tokens, completion),
        ],
        prompt_text=prompt,
        completion_texts=[text],
        rewards={"exact_match": float(right)},
        reward=float(right),
        advantage=float(right) - mean,
    )
