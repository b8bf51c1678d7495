"""Logprobs and entropy of chosen tokens, without ever holding the logits of a whole batch.

The logits of N tokens over a vocabulary of V take N x V numbers, and the plain way keeps several
copies of them for the backward pass: 2.5 GB each for 4,096 tokens and 151,936 words. Here they are
computed for a chunk of tokens at a time, and once more in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from forge_tensors.accumulate import add_product
from forge_tensors.chunks import chunk_bytes


def chunk_bytes_on(device: torch.device) -> int:
    """Size of one chunk of float32 logits on a device. A few temporaries of it exist at a time."""
    if device.type != "cuda":
        return chunk_bytes()
    return chunk_bytes(torch.cuda.get_device_properties(device).total_memory)


@dataclass(frozen=True, slots=True)
class LogitShape:
    """What is done to ``hidden @ weight.T + bias`` before the softmax, in this order.

    Args:
        scale: logits are multiplied by it (Cohere, Granite).
        softcap: c, for ``c tanh(logits / c)`` (Gemma); None: none.
        temperature: logits are divided by it.
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    shape: LogitShape | None = None,
    with_entropy: bool = False,
    most_bytes: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Natural-log probability of each target, and entropy of its distribution.

    Differentiable in hidden, weight and bias. The matrix product is done in the type of ``hidden``
    (under autocast: in autocast's type), everything after it in float32 (float64 for float64), and
    weight gradients add up over chunks in float32.

    Args:
        hidden: output of the model below its head. [N, H]
        weight: of the head. [V, H]
        targets: token ids. [N] int64
        bias: of the head. [V]
        shape: what is done to the logits before the softmax.
        with_entropy: also give entropies, in nats.
        most_bytes: bound on one chunk of logits; None: as suits the device. If all fit into one, it
            is kept for the backward pass, so that small vocabularies do not pay for computing it
            again.

    Returns:
        logprobs [N] and entropies [N] or None; float32 (float64 for float64).
    """
    device = hidden.device.type
    most = chunk_bytes_on(hidden.device) if most_bytes is None else most_bytes
    product = (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    )
    with torch.autocast(device, enabled=False):
        logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, weight, targets, bias, shape or LogitShape(), with_entropy, most, product
        )
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        bias: torch.Tensor | None,
        shape: LogitShape,
        with_entropy: bool,
        most_bytes: int,
        product: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        count = hidden.shape[0]
        rows = max(1, most_bytes // (4 * weight.shape[0]))
        kept = None
        logprobs = hidden.new_empty(count, dtype=_real(hidden))
        entropy = torch.empty_like(logprobs) if with_entropy else None
        cast = weight.to(product)
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            log_p, tanh = _log_softmax(hidden[part].to(product), cast, bias, shape)
            logprobs[part] = log_p.gather(1, targets[part, None]).squeeze(1)
            if entropy is not None:
                entropy[part] = -torch.linalg.vecdot(log_p.exp(), log_p)
            if count <= rows:
                kept = (log_p, tanh)
        ctx.save_for_backward(hidden, weight, targets, bias, entropy, *(kept or ()))
        ctx.shape, ctx.rows, ctx.product = shape, rows, product
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, bias, entropy, *kept = ctx.saved_tensors
        shape: LogitShape = ctx.shape
        for_hidden, for_weight, _, for_bias = ctx.needs_input_grad[:4]
        wide = _real(hidden)
        cast = weight.to(ctx.product)
        grad_hidden = torch.empty_like(hidden) if for_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if for_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if for_bias else None
        for start in range(0, hidden.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            inputs = hidden[part].to(ctx.product)
            log_p, tanh = kept or _log_softmax(inputs, cast, bias, shape)
            grad = _softmax_gradient(
                log_p,
                targets[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
                None if entropy is None else entropy[part],
            )
            if tanh is not None:
                grad.mul_(1 - tanh.square())
            if shape.scale != shape.temperature:
                grad.mul_(shape.scale / shape.temperature)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(ctx.product)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ cast
            if grad_weight is not None:
                add_product(grad_weight, grad.T, inputs)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *[None] * 4,
        )


def _real(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _log_softmax(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: LogitShape
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities [n, V], and with a soft cap the tanh that its gradient needs. [n, V]"""
    logits = (hidden @ weight.T).to(_real(hidden))
    if bias is not None:
        logits += bias
    tanh = None
    if shape.softcap is not None:
        tanh = logits.mul_(shape.scale / shape.softcap).tanh_()
        logits = tanh * (shape.softcap / shape.temperature)
    elif shape.scale != shape.temperature:
        logits *= shape.scale / shape.temperature
    return logits.log_softmax(-1), tanh


def _softmax_gradient(
    log_p: torch.Tensor,
    targets: torch.Tensor,
    grad_logprobs: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Gradient in the logits that went into the softmax. [n, V]

    With p the probabilities, z the logits, y the target and H = -sum p log p:
    d log p_y / dz = onehot(y) - p and dH / dz = -p (log p + H).
    """
    p = log_p.exp()
    if grad_entropy is None:
        grad = p if grad_logprobs is None else p.mul_(-grad_logprobs[:, None])
        if grad_logprobs is None:
            grad.zero_()
    else:
        assert entropy is not None
        factor = (log_p + entropy[:, None]).mul_(grad_entropy[:, None])
        if grad_logprobs is not None:
            factor += grad_logprobs[:, None]
        grad = p.mul_(factor).neg_()
    if grad_logprobs is not None:
        grad.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return grad
