"""Logprobs and entropy of chosen tokens when the vocabulary lies over several ranks.

The way of ``forge_tensors.logprobs``, with each rank computing the logits of its own rows of
the head only; what goes between ranks is three numbers a token. (Shoeybi et al., Megatron-LM,
arXiv:1909.08053, section 3.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from forge_tensors.accumulate import add_product


def sharded_token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    first: int,
    group: dist.ProcessGroup,
    chunk: int,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Natural-log probability of each target, and entropy of its distribution. A collective.

    Args:
        hidden: output of the model below its head, the same on every rank. [N, H]
        weight: this rank's rows of the head. [V / ranks, H]
        targets: token ids of the whole vocabulary. [N] int64
        first: token id of this rank's first row.
        group: ranks that share the vocabulary.
        chunk: tokens whose logits are held at a time; the same number on every rank.
        temperature: logits are divided by it.
        with_entropy: also give entropies, in nats.

    Returns:
        logprobs [N] and entropies [N] or None, in float32, the same on every rank.
    """
    scores: tuple[torch.Tensor, torch.Tensor | None] = _ShardedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets - first, group, temperature, with_entropy, chunk
    )
    return scores


class _ShardedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        group: dist.ProcessGroup,
        temperature: float,
        with_entropy: bool,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        mine = (targets >= 0) & (targets < weight.shape[0])
        normalizers, chosen, expected = [], [], []
        for part in _chunks(hidden.shape[0], chunk):
            logits = _logits(hidden[part], weight, temperature)
            top = logits.amax(-1)
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
            weights = (logits - top[:, None]).exp()
            at_target = logits.gather(1, targets[part].where(mine[part], 0)[:, None]).squeeze(1)
            sums = torch.stack(
                [
                    weights.sum(-1),
                    at_target.where(mine[part], 0),
                    torch.linalg.vecdot(weights, logits),
                ]
            )
            dist.all_reduce(sums, group=group)
            normalizers.append(top + sums[0].log())
            chosen.append(sums[1])
            expected.append(sums[2] / sums[0])
        none = [hidden.new_zeros(0, dtype=torch.float32)]
        normalizer = torch.cat(normalizers or none)
        logprobs = torch.cat(chosen or none) - normalizer
        entropy = normalizer - torch.cat(expected or none)
        ctx.save_for_backward(hidden, weight, targets, mine, normalizer, entropy)
        ctx.group, ctx.temperature, ctx.chunk = group, temperature, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropy if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, mine, normalizer, entropy = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for part in _chunks(hidden.shape[0], ctx.chunk):
            log_p = _logits(hidden[part], weight, ctx.temperature) - normalizer[part, None]
            # d log p_y / dz = onehot(y) - p and dH / dz = -p (log p + H)
            factor = torch.zeros_like(log_p)
            if grad_entropy is not None:
                factor += (log_p + entropy[part, None]) * grad_entropy[part, None]
            if grad_logprobs is not None:
                factor += grad_logprobs[part, None]
            grad = log_p.exp().mul_(factor).neg_()
            if grad_logprobs is not None:
                owned = mine[part].nonzero().squeeze(1)
                grad[owned, targets[part][owned]] += grad_logprobs[part][owned]
            grad = (grad / ctx.temperature).to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            add_product(grad_weight, grad.T, hidden[part])
        dist.all_reduce(grad_hidden, group=ctx.group)
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None, None


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    """Of this rank's words. [n, V / ranks] float32"""
    return (hidden @ weight.T).float().div_(temperature)
