"""What one rank of a trainer holds, in bytes: asked by ``forge plan``, answered by trainers.

Weights, gradients and optimizer state follow from the settings exactly. Activations are counted
from the tensors that a decoder layer keeps for its backward pass (Korthikanti et al.,
arXiv:2205.05198, for fused attention and a gated feed-forward layer); they are an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from forge_core.models.shape import FAMILIES, ModelShape
from forge_core.tensors.chunks import CPU_BYTES, CUDA_BYTES

Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a trainer is asked to hold.

    Args:
        shape: of the model.
        tokens: most tokens of a micro-batch as the recipe hands it over, for all ranks.
        longest: most tokens of one sequence.
        reference: a frozen copy of the weights is kept for the KL term.
        trained: False for a reference of its own, which is only asked for logprobs.
    """

    shape: ModelShape
    tokens: int
    longest: int
    reference: bool = False
    trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The fullest rank's memory, term by term; what the allocator and kernels need comes on top.

    Args:
        device: bytes where the model computes: ``parameters``, ``gradients``, ``optimizer``,
            ``activations``, and what else the settings lead to.
        host: bytes kept in host memory instead.
        tokens: in the forward pass that ``activations`` are counted for, on this rank.
        layout: how the ranks are shared out, in words.
    """

    device: Mapping[str, int]
    host: Mapping[str, int] = field(default_factory=dict)
    tokens: int
    layout: str = ""


def layer_activations(shape: ModelShape, checkpointing: Checkpointing) -> int:
    """Numbers that one decoder layer keeps of each token for its backward pass.

    ``full`` keeps the layer's input; ``selective`` also attention's output and every other
    product of matrices, as TorchTitan does; ``none`` all that autograd saves.
    """
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if checkpointing == "full":
        return hidden
    if checkpointing == "selective":
        products = queries + 2 * keys + 2 * hidden + 2 * wide
        return hidden + queries + products // 2
    head_norms = queries + keys if FAMILIES[shape.model_type] else 0
    attention = 2 * hidden + 2 * queries + 2 * keys + head_norms
    return attention + 2 * hidden + 4 * wide


def head_activations(shape: ModelShape, tokens: int, *, cuda: bool) -> int:
    """Bytes that the logprobs of these tokens hold at once: float32 logits, their log-softmax and
    its gradient, of all tokens or of a chunk (``forge_core.tensors.chunks``)."""
    return 3 * min(tokens * shape.vocab * 4, CUDA_BYTES if cuda else CPU_BYTES)
