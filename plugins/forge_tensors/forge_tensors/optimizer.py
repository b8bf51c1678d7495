"""The config's optimizer over a trainer's weights, the same for every trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from forge_core import BuildContext, DataError, PluginError, UsageError
from forge_core.contracts.blame import blaming, title


def make_optimizer(
    context: BuildContext, parameters: Iterable[tuple[str, torch.Tensor]], *, rate: float
) -> torch.optim.Optimizer:
    """The optimizer that ``training.optimizer`` chose.

    Vectors (norms and biases) get ``weight_decay`` 0: they set scales and offsets, and pulling
    those to zero regularizes nothing. Embeddings are matrices.

    Args:
        context: of the trainer.
        parameters: trained weights by name. Groups have the names as ``param_names``.
        rate: first learning rate; trainers set it in every group before each step.

    Raises:
        UsageError: the context has a loss and no optimizer.
        PluginError: what it made is not an optimizer of these weights; names the component.
    """
    selection = context.optimizer
    if selection is None and context.loss is not None:
        raise UsageError("training.optimizer: a trainer with a loss needs an optimizer")
    named = [(name, weight) for name, weight in parameters if weight.requires_grad]
    groups: list[dict[str, Any]] = []
    for chosen, own in (
        ([each for each in named if each[1].dim() >= 2], {}),
        ([each for each in named if each[1].dim() < 2], {"weight_decay": 0.0}),
    ):
        if chosen:
            names, weights = zip(*chosen, strict=True)
            group = {"params": list(weights), "param_names": list(names), "lr": rate}
            groups.append({**group, **own})
    if selection is None:  # it never makes a step: this one keeps nothing
        return torch.optim.SGD(groups)
    factory = selection.build(context)
    with blaming(selection, "making the optimizer"):
        optimizer = factory(groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PluginError(
            f"{title(selection)}: made {type(optimizer).__name__}, not a torch.optim.Optimizer"
        )
    held = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    if sorted(held) != sorted(id(weight) for _, weight in named):
        raise PluginError(
            f"{title(selection)}: made an optimizer of other weights than it was given "
            f"({len(set(held))} of {len(named)})"
        )
    if any("lr" not in group for group in optimizer.param_groups):
        raise PluginError(
            f"{title(selection)}: made an optimizer without lr in its param_groups, where trainers "
            "set the learning rate"
        )
    return optimizer


def kind(optimizer: torch.optim.Optimizer) -> str:
    """Name of an optimizer's class, by which a checkpoint knows whose state it has."""
    return type(optimizer).__qualname__


def check_kind(optimizer: torch.optim.Optimizer, saved: str) -> None:
    """The state of a checkpoint is that of this kind of optimizer.

    Raises:
        DataError: it is another's, and would mean nothing.
    """
    if saved != kind(optimizer):
        raise DataError(
            f"training.optimizer: the checkpoint has the state of {saved}, and the config asks for "
            f"{kind(optimizer)}; go on with the same optimizer, or start a run from the "
            "checkpoint's weights (model.path)"
        )


def load_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore what an optimizer keeps of each weight, and nothing else.

    ``load_state_dict`` would also bring back the saved weight decay, betas and other settings. A
    resumed run may be given new ones, and what its config says must hold.

    Args:
        optimizer: built from the config, over the same parameters.
        saved: its ``state_dict``.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({**saved, "param_groups": groups})
