"""AdamW and the course of its learning rate."""

from __future__ import annotations

import math

import torch

from forge_core.config.sections import TrainingSection
from forge_core.errors import UsageError


def make_optimizer(model: torch.nn.Module, training: TrainingSection) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with weight decay on matrices only.

    Vectors (norms and biases) are not decayed: they set scales and offsets, and pulling those to
    zero regularizes nothing. Embeddings are matrices.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,  # a third of the time of the others on CPU
    )


def learning_rate(training: TrainingSection, step: int) -> float:
    """Learning rate of a step, counted from 0.

    With w warmup steps of T in all it is the peak times ``(step + 1) / (w + 1)`` while
    ``step < w``, so that no step is spent at zero, and then times a function of
    ``x = (step - w) / (T - w)``, which goes from 0 to 1 as training ends: 1 (constant), ``1 - x``
    (linear) or ``(1 + cos(pi x)) / 2`` (cosine). Steps beyond T stay at the end.
    """
    peak, warmup = training.learning_rate, training.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if training.schedule == "constant":
        return peak
    total = total_steps(training)
    done = min(1.0, (step - warmup) / (total - warmup)) if total > warmup else 1.0
    if training.schedule == "linear":
        return peak * (1 - done)
    return peak * (1 + math.cos(math.pi * done)) / 2


def total_steps(training: TrainingSection) -> int:
    """The stage's target.

    Raises:
        UsageError: it is not given, and the schedule needs it.
    """
    if training.steps is None:
        raise UsageError(f"training.schedule: {training.schedule} needs training.steps to end at")
    return training.steps
