"""What a head says of chosen tokens, without ever holding the logits of a whole batch.

The logits of N tokens over a vocabulary of V take N x V numbers, and the plain way keeps several
copies of them for the backward pass: 2.5 GB each for 4,096 tokens and 151,936 words. Here they are
computed for a chunk of tokens at a time, and once more in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from forge_core import ModelOutputs, OutputNeeds, TopLogprobs
from forge_tensors.accumulate import add_product
from forge_tensors.chunks import chunk_bytes

Tokens = slice | torch.Tensor
"""Which of N tokens: a slice, or indices. [n] int64"""

Terms = Callable[[torch.Tensor, Tokens], torch.Tensor]
"""(log-probabilities of the vocabulary [n, V], which of the N tokens they are of) -> [n] or [n, K].
Gradients flow through the log-probabilities alone."""

NOTHING = OutputNeeds()
"""Logprobs and nothing else."""


class Scores(NamedTuple):
    """What a model says of N tokens; None what was not asked for. (A named tuple: FSDP looks for
    tensors in tuples, and not in other objects.)

    Args:
        logprobs: natural-log probabilities. [N]
        entropy: of the next-token distributions, in nats. [N]
        top_tokens: the K most probable tokens, the most probable first. [N, K] int64
        top_logprobs: theirs. [N, K]
        terms: what ``Terms`` made of the log-probabilities. [N] or [N, K]
        hidden_states: output of the model below its head. [N, H]
        values: of a value head. [N]
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    top_tokens: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None
    terms: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None
    values: torch.Tensor | None = None

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Scores:
        """The same with a function applied to each tensor."""
        return Scores(*(None if each is None else function(each) for each in self))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Of one request, end to end."""
        columns = zip(*parts, strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]

    def outputs(self) -> ModelOutputs:
        """What a loss is given beside logprobs."""
        names = ("entropy", "terms", "hidden_states", "values")
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.top_tokens is not None and self.top_logprobs is not None:
            given["top_logprobs"] = TopLogprobs(self.top_tokens, self.top_logprobs)
        return ModelOutputs({name: value for name, value in given.items() if value is not None})


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
    needs: OutputNeeds = NOTHING,
    terms: Terms | None = None,
    most_bytes: int | None = None,
) -> Scores:
    """Natural-log probability of each target, and what else is asked for of its distribution.

    Differentiable in hidden, weight and bias. The matrix product is done in the type of ``hidden``
    (under autocast: in autocast's type), everything after it in float32 (float64 for float64), and
    weight gradients add up over chunks in float32.

    Args:
        hidden: output of the model below its head. [N, H]
        weight: of the head. [V, H]
        targets: token ids. [N] int64
        bias: of the head. [V]
        shape: what is done to the logits before the softmax.
        needs: what else to give: ``entropy``, ``top_logprobs`` (at most V of them) and
            ``hidden_states``; the last for ``values`` too, which are made elsewhere.
        terms: what to make of the log-probabilities of each chunk; None: nothing.
        most_bytes: bound on one chunk of logits; None: as suits the device. If all fit into one, it
            is kept for the backward pass, so that small vocabularies do not pay for computing it
            again.

    Returns:
        float32 (float64 for float64); hidden states as they are.
    """
    device = hidden.device.type
    most = chunk_bytes_on(hidden.device) if most_bytes is None else most_bytes
    product = (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    )
    asked = _Asked(entropy=needs.entropy, top=min(needs.top_logprobs, weight.shape[0]), terms=terms)
    with torch.autocast(device, enabled=False):
        made = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, weight, targets, bias, shape or LogitShape(), asked, most, product
        )
    scores = Scores(*made)
    below = needs.hidden_states or needs.values
    return scores._replace(hidden_states=hidden) if below else scores


def scores_of(
    log_softmax: torch.Tensor,
    targets: torch.Tensor,
    needs: OutputNeeds,
    terms: Terms | None,
    tokens: Tokens,
) -> Scores:
    """The same of log-probabilities that are there, by plain operations.

    Args:
        log_softmax: of the vocabulary. [n, V]
        targets: token ids. [n] int64
        needs: ``entropy`` and ``top_logprobs`` of it.
        terms: as for ``token_logprobs``.
        tokens: which of the N tokens these are.
    """
    top = None
    if needs.top_logprobs:
        top = log_softmax.topk(min(needs.top_logprobs, log_softmax.shape[1]))
    return Scores(
        log_softmax.gather(1, targets[:, None]).squeeze(1),
        -(log_softmax.exp() * log_softmax).sum(-1) if needs.entropy else None,
        None if top is None else top.indices,
        None if top is None else top.values,
        None if terms is None else terms(log_softmax, tokens),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is made of each chunk beside logprobs."""

    entropy: bool
    top: int
    terms: Terms | None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        bias: torch.Tensor | None,
        shape: LogitShape,
        asked: _Asked,
        most_bytes: int,
        product: torch.dtype,
    ) -> tuple[torch.Tensor | None, ...]:
        count = hidden.shape[0]
        rows = max(1, most_bytes // (4 * weight.shape[0]))
        kept = None
        logprobs = hidden.new_empty(count, dtype=_real(hidden))
        entropy = torch.empty_like(logprobs) if asked.entropy else None
        top_tokens = targets.new_empty(count, asked.top) if asked.top else None
        top_logprobs = logprobs.new_empty(count, asked.top) if asked.top else None
        made = []
        cast = weight.to(product)
        for start in range(0, count, rows):
            part = slice(start, min(start + rows, count))
            log_p, tanh = _log_softmax(hidden[part].to(product), cast, bias, shape)
            logprobs[part] = log_p.gather(1, targets[part, None]).squeeze(1)
            if entropy is not None:
                entropy[part] = -torch.linalg.vecdot(log_p.exp(), log_p)
            if top_tokens is not None and top_logprobs is not None:
                top_logprobs[part], top_tokens[part] = log_p.topk(asked.top)
            if asked.terms is not None:
                made.append(asked.terms(log_p, part))
            if count <= rows:
                kept = (log_p, tanh)
        if asked.terms is not None and not made:  # the loss knows their shape
            made.append(asked.terms(logprobs.new_empty(0, weight.shape[0]), slice(0, 0)))
        ctx.save_for_backward(hidden, weight, targets, bias, entropy, top_tokens, *(kept or ()))
        ctx.shape, ctx.rows, ctx.product, ctx.terms = shape, rows, product, asked.terms
        ctx.set_materialize_grads(False)
        if top_tokens is not None:
            ctx.mark_non_differentiable(top_tokens)
        return logprobs, entropy, top_tokens, top_logprobs, torch.cat(made) if made else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_logprobs: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
        _: torch.Tensor | None,
        grad_top: torch.Tensor | None,
        grad_terms: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, bias, entropy, top_tokens, *kept = ctx.saved_tensors
        shape: LogitShape = ctx.shape
        for_hidden, for_weight, _, for_bias = ctx.needs_input_grad[:4]
        wide = _real(hidden)
        cast = weight.to(ctx.product)
        grad_hidden = torch.empty_like(hidden) if for_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if for_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if for_bias else None
        count = hidden.shape[0]
        for start in range(0, count, ctx.rows):
            part = slice(start, min(start + ctx.rows, count))
            inputs = hidden[part].to(ctx.product)
            log_p, tanh = kept or _log_softmax(inputs, cast, bias, shape)
            grad = _softmax_gradient(
                log_p,
                targets[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
                None if entropy is None else entropy[part],
            )
            # Through log p = z - logsumexp z, a gradient g becomes g - p sum(g).
            if grad_top is not None:
                grad.sub_(log_p.exp().mul_(grad_top[part].sum(-1, keepdim=True)))
                grad.scatter_add_(1, top_tokens[part], grad_top[part])
            if grad_terms is not None:
                through = _terms_gradient(ctx.terms, log_p, part, grad_terms[part])
                grad.sub_(log_p.exp().mul_(through.sum(-1, keepdim=True))).add_(through)
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


def _terms_gradient(
    terms: Terms, log_p: torch.Tensor, part: slice, grad: torch.Tensor
) -> torch.Tensor:
    """Gradient of a chunk's terms in its log-probabilities, by making them once more. [n, V]"""
    with torch.enable_grad():
        leaf = log_p.detach().requires_grad_()
        made = terms(leaf, part)
    if not made.requires_grad:
        return torch.zeros_like(log_p)
    (gradient,) = torch.autograd.grad(made, leaf, grad)
    return gradient


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
