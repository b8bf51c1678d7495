"""What one rank of a trainer holds, in bytes: asked by ``forge plan``, answered by trainers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder.

    Args:
        model_type: transformers' name of the architecture.
        vocab: tokens.
        hidden: width of the residual stream.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        intermediate: width of the feed-forward layer.
        tied: embeddings and head share one matrix.
        window: most positions.
        head_norms: norms over each head in an attention layer.
    """

    model_type: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool
    window: int
    head_norms: int = 0

    @property
    def layer_parameters(self) -> int:
        """Of one decoder layer."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate + self.layer_norms

    @property
    def layer_norms(self) -> int:
        """Of these, the vectors."""
        return 2 * self.hidden + self.head_norms * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Of the token embeddings; a head of its own has as many."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + self.hidden


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
