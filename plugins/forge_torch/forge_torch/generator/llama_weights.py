"""The weights of a Llama-family model, laid out for decoding, with a view for each HF tensor.

Weights of products lie as [in, out], in which a CPU multiplies few rows fastest; q, k and v are one
matrix, gate and up another. The two halves of each q and k head, which rotary embeddings pair, are
interleaved, so that a pair is one complex number; dot products of q and k do not notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LayerWeights:
    """One layer. H query heads, K key heads, D dimensions each; hidden size E, MLP size F."""

    input_norm: torch.Tensor  # [E]
    qkv: torch.Tensor  # [E, (H + 2K) D]
    qkv_bias: torch.Tensor | None  # [(H + 2K) D]
    query_norm: torch.Tensor | None  # [D]
    key_norm: torch.Tensor | None  # [D]
    output: torch.Tensor  # [H D, E]
    output_bias: torch.Tensor | None  # [E]
    mlp_norm: torch.Tensor  # [E]
    gate_up: torch.Tensor  # [E, 2F]
    down: torch.Tensor  # [F, E]


class LlamaWeights:
    """Takes the weights over from a model layer by layer, so that they are held only once.

    Attributes:
        layers: in order.
        embedding: [V, E]
        norm: [E]
        head: the embedding itself where they are tied. [V, E]
        views: Hugging Face name -> the same elements in the same order, perhaps with dimensions
            split.

    Args:
        model: its layers are gone afterwards.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.views: dict[str, torch.Tensor] = {}
        body = model.model
        self._head_dim: int = body.layers[0].self_attn.head_dim
        self.embedding = self._keep("model.embed_tokens.weight", body.embed_tokens.weight)
        self.norm = self._keep("model.norm.weight", body.norm.weight)
        self.head = self._keep("lm_head.weight", model.lm_head.weight)
        self.layers: list[LayerWeights] = []
        for index in range(len(body.layers)):
            self.layers.append(self._take_layer(f"model.layers.{index}", body.layers[index]))
            body.layers[index] = torch.nn.Identity()

    def _take_layer(self, prefix: str, layer: Any) -> LayerWeights:
        attention, mlp, within = layer.self_attn, layer.mlp, f"{prefix}.self_attn"
        query_norm = key_norm = output_bias = None
        if hasattr(attention, "q_norm"):
            query_norm = self._take_head_norm(f"{within}.q_norm.weight", attention.q_norm)
            key_norm = self._take_head_norm(f"{within}.k_norm.weight", attention.k_norm)
        if attention.o_proj.bias is not None:
            output_bias = self._keep(f"{within}.o_proj.bias", attention.o_proj.bias)
        return LayerWeights(
            input_norm=self._keep(f"{prefix}.input_layernorm.weight", layer.input_layernorm.weight),
            qkv=self._take_qkv(within, attention),
            qkv_bias=self._take_qkv_bias(within, attention),
            query_norm=query_norm,
            key_norm=key_norm,
            output=self._take_product(within, attention, ("o_proj",)),
            output_bias=output_bias,
            mlp_norm=self._keep(
                f"{prefix}.post_attention_layernorm.weight", layer.post_attention_layernorm.weight
            ),
            gate_up=self._take_product(f"{prefix}.mlp", mlp, ("gate_proj", "up_proj")),
            down=self._take_product(f"{prefix}.mlp", mlp, ("down_proj",)),
        )

    def _take_qkv(self, prefix: str, attention: Any) -> torch.Tensor:
        names = ("q_proj", "k_proj", "v_proj")
        sources = [getattr(attention, name).weight for name in names]
        joined = _empty(sources[0], sources[0].shape[1], sum(len(source) for source in sources))
        parts = torch.split_with_sizes(joined, [len(source) for source in sources], dim=1)
        for name, source, part in zip(names, sources, parts, strict=True):
            view = part.t()
            if name != "v_proj":
                view = torch.unflatten(part, 1, (-1, self._head_dim // 2, 2)).permute(1, 3, 2, 0)
            self._fill(f"{prefix}.{name}.weight", view, source)
        return joined

    def _take_qkv_bias(self, prefix: str, attention: Any) -> torch.Tensor | None:
        names = ("q_proj", "k_proj", "v_proj")
        sources = [getattr(attention, name).bias for name in names]
        if sources[0] is None:
            return None
        joined = _empty(sources[0], sum(len(source) for source in sources))
        parts = torch.split_with_sizes(joined, [len(source) for source in sources])
        for name, source, part in zip(names, sources, parts, strict=True):
            view = part
            if name != "v_proj":
                view = torch.unflatten(part, 0, (-1, self._head_dim // 2, 2)).transpose(1, 2)
            self._fill(f"{prefix}.{name}.bias", view, source)
        return joined

    def _take_head_norm(self, name: str, norm: Any) -> torch.Tensor:
        weight = _empty(norm.weight, self._head_dim)
        self._fill(name, weight.view(-1, 2).t(), norm.weight)
        return weight

    def _take_product(self, prefix: str, module: Any, names: tuple[str, ...]) -> torch.Tensor:
        """One matrix [in, sum of outs] for linear layers of equal size."""
        sources = [getattr(module, name).weight for name in names]
        joined = _empty(sources[0], sources[0].shape[1], sum(len(source) for source in sources))
        parts = joined.chunk(len(sources), dim=1)
        for name, source, part in zip(names, sources, parts, strict=True):
            self._fill(f"{prefix}.{name}.weight", part.t(), source)
        return joined

    def _fill(self, name: str, view: torch.Tensor, source: torch.Tensor) -> None:
        self.views[name] = view.copy_(source.view(view.shape))

    def _keep(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        self.views[name] = weight = weight.detach()
        return weight


def _empty(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)
