"""Context parallelism: each rank holds a part of every sequence.

TorchTitan shares the tokens of a batch out so that all ranks attend to about equally much, and
gathers keys and values in each layer. A rank then predicts the targets whose rows it holds; the
scores of all of them are put together before the loss sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask

from forge_tensors.batch import PackedBatch
from forge_tensors.compilation import missing_for_compilation
from forge_titan.ranks import Ranks
from forge_titan.torchtitan_api import prepare_context_parallel_input

BLOCK = 128
"""Tokens in a block of FlexAttention's masks, the unit in which they are shared out."""


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part of a batch of T tokens.

    Args:
        tokens: [1, T / ranks]
        positions: [1, T / ranks]
        mask: of this rank's queries and all keys.
        places: where in the whole batch each token stands. [T / ranks]
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: Any
    places: torch.Tensor


def split_batch(batch: PackedBatch, ranks: Ranks, window: int) -> Part:
    """This rank's part of a batch, which is padded with sequences that nothing is trained on.

    Args:
        batch: the same on every rank.
        ranks: among which it is split.
        window: most positions of the model.
    """
    unit = 2 * BLOCK * ranks.degrees.context
    length = -(-batch.tokens.numel() // unit) * unit
    padding = torch.arange(length - batch.tokens.numel(), device=batch.tokens.device) % window
    tokens = torch.cat([batch.tokens, torch.zeros_like(padding)])
    positions = torch.cat([batch.positions, padding])
    sequence = (positions == 0).cumsum(0)

    def visible(b: Any, h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (sequence[query] == sequence[key])

    mask = create_block_mask(visible, 1, None, length, length, device=tokens.device.type)
    # It compiles a function of its own; the result is the same without.
    uncompiled = tokens.device.type == "cpu" and missing_for_compilation() is not None
    with torch.compiler.set_stance("force_eager" if uncompiled else "default"):
        mine, places, rest = prepare_context_parallel_input(
            tokens[None],
            torch.arange(length, device=tokens.device)[None],
            {"positions": positions[None], "attention_masks": mask},
            ranks.mesh("cp"),
            ranks.device,
            ranks.parallelism.context_parallel_load_balancer,
        )
    return Part(mine, rest["positions"], rest["attention_masks"], places[0])


def local_targets(places: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which wanted places this rank holds, and in which of its rows.

    Args:
        places: of this rank's rows, all different.
        wanted: places. [N]

    Returns:
        indices into ``wanted`` and rows, equally many.
    """
    row_of = torch.full(
        (int(wanted.max()) + 1,) if wanted.numel() else (0,), -1, device=places.device
    )
    inside = places < row_of.numel()
    row_of[places[inside]] = inside.nonzero().squeeze(1)
    rows = row_of[wanted]
    indices = (rows >= 0).nonzero().squeeze(1)
    return indices, rows[indices]


def all_reduce_scores(
    scores: torch.Tensor, indices: torch.Tensor, count: int, ranks: Ranks
) -> torch.Tensor:
    """All ranks' scores in one tensor, the same on each. A collective.

    Every rank goes backward from the same loss, so a score's gradient stays with its rank.

    Args:
        scores: of this rank. [n] or [n, K]
        indices: where they belong. [n]
        count: of all. N
    """
    whole = scores.new_zeros(count, *scores.shape[1:]).index_copy(0, indices, scores)
    summed: torch.Tensor = _Sum.apply(whole, ranks.mesh("cp").get_group())  # type: ignore[no-untyped-call]
    return summed


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
