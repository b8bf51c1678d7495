"""AdamW as the trainer uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from forge_core import TrainingSection


def make_optimizer(
    named: Iterable[tuple[str, torch.nn.Parameter]], training: TrainingSection
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) with weight decay on matrices only.

    Vectors (norms and biases) are not decayed: they set scales and offsets, and pulling those to
    zero regularizes nothing. Embeddings are matrices.
    """
    parameters = [p for _, p in named if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,  # a third of the time of the other ways on CPU
    )


def load_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore the moments and step counts of a saved optimizer, and nothing else.

    ``load_state_dict`` would also bring back the saved weight decay, betas and other settings. A
    resumed run may be given new ones, and what its config says must hold.

    Args:
        optimizer: built from the config, over the same parameters.
        saved: its ``state_dict``.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({**saved, "param_groups": groups})
