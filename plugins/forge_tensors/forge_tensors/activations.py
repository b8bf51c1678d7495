"""Activations of a decoder, in numbers and bytes, for ``forge plan``.

They are counted from the tensors that a decoder layer keeps for its backward pass (Korthikanti et
al., arXiv:2205.05198, for fused attention and a gated feed-forward layer); they are an estimate.
Weights, gradients and optimizer state follow from a trainer's settings exactly.
"""

from __future__ import annotations

from forge_core import Checkpointing, ModelShape
from forge_tensors.chunks import CPU_BYTES, CUDA_BYTES


def layer_activations(shape: ModelShape, checkpointing: Checkpointing) -> int:
    """Numbers that one decoder layer keeps of each token for its backward pass.

    ``full`` keeps the layer's input; ``selective`` also attention's output and every other
    product of matrices; ``none`` all that autograd saves.
    """
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if checkpointing == "full":
        return hidden
    if checkpointing == "selective":
        products = queries + 2 * keys + 2 * hidden + 2 * wide
        return hidden + queries + products // 2
    head_norms = queries + keys if shape.head_norms else 0
    attention = 2 * hidden + 2 * queries + 2 * keys + head_norms
    return attention + 2 * hidden + 4 * wide


def head_activations(shape: ModelShape, tokens: int, *, cuda: bool) -> int:
    """Bytes that the logprobs of these tokens hold at once: float32 logits, their log-softmax and
    its gradient, of all tokens or of a chunk (``forge_tensors.chunks``)."""
    return 3 * min(tokens * shape.vocab * 4, CUDA_BYTES if cuda else CPU_BYTES)
