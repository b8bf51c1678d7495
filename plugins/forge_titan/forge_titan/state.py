"""Optimizer, schedule and random numbers in torch's distributed checkpoint format.

Tensors are stored by name and global position, so that another number of ranks can read them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from forge_core import DataError
from forge_tensors.optimizer import check_kind, kind
from forge_titan.ranks import Ranks
from forge_titan.safe_state import SafePlanner, SafeReader

FOLDER = "trainer_state"
"""Beside the weights in a checkpoint."""


def save_state(optimizers: Any, schedulers: Any, ranks: Ranks, folder: Path) -> None:
    """Write what a resume needs beside the weights. A collective."""
    state = {
        "optimizer": optimizers.state_dict(),
        "optimizer_kind": kind(optimizers.optimizers[0]),
        "scheduler": schedulers.state_dict(),
        "random": torch.get_rng_state(),
    }
    with _quiet():
        save(state, checkpoint_id=folder / FOLDER, no_dist=ranks.world_size == 1)


def load_state(optimizers: Any, schedulers: Any, ranks: Ranks, folder: Path) -> None:
    """Restore what ``save_state`` wrote, onto any number of ranks. A collective.

    Moments and counters are the checkpoint's; the optimizer's settings (weight decay, betas, ...)
    stay as they were built from the config, which may differ from the checkpoint's on a resume.

    Raises:
        DataError: the folder has no such state, that of another kind of optimizer, or one that
            would run code when read.
    """
    if not (folder / FOLDER).is_dir():
        raise DataError(f"checkpoint {folder}: {FOLDER}, which trainer titan writes, is missing")
    written = {"optimizer_kind": ""}
    _load(written, ranks, folder)
    check_kind(optimizers.optimizers[0], written["optimizer_kind"])
    settings = [[_settings(group) for group in each.param_groups] for each in optimizers]
    state = {
        "optimizer": optimizers.state_dict(),
        "scheduler": schedulers.state_dict(),
        "random": torch.get_rng_state(),
    }
    _load(state, ranks, folder)
    with _quiet():
        optimizers.load_state_dict(state["optimizer"])
        schedulers.load_state_dict(state["scheduler"])
    for optimizer, scheduler, own in zip(optimizers, schedulers, settings, strict=True):
        rates = scheduler.get_last_lr()
        for group, configured, rate in zip(optimizer.param_groups, own, rates, strict=True):
            group.update(configured, lr=rate)
    torch.set_rng_state(state["random"])


def _load(state: dict[str, Any], ranks: Ranks, folder: Path) -> None:
    """Fill in a state from what was written."""
    with _quiet():
        load(
            state,
            storage_reader=SafeReader(folder / FOLDER),
            planner=SafePlanner(),
            no_dist=ranks.world_size == 1,
        )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Everything in a parameter group but the parameters."""
    return {name: value for name, value in group.items() if name != "params"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of what is meant so: one process alone, a schedule read while it is set."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="To get the last learning rate")
        yield
