"""Any Hugging Face causal LM whose layers remember keys and values, run by its own modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from forge_torch.generator.cache import KVCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HFDecoder:
    """Args:
    model: in evaluation mode, on its device.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.requires_grad_(False)
        self._layers = model.config.get_text_config().num_hidden_layers
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]

    def new_cache(self) -> KVCache:
        return KVCache(self._model.device)

    def forward(self, tokens: torch.Tensor, cache: KVCache) -> torch.Tensor:
        output = self._model(
            input_ids=tokens,
            attention_mask=cache.visible(),
            position_ids=cache.positions(),
            past_key_values=_CacheView(cache, self._layers),
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def weights(self) -> Mapping[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = self._model.state_dict()
        return weights

    def shapes(self) -> Mapping[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self.weights().items()}


class _CacheView(Cache):  # type: ignore[misc]
    """A ``KVCache`` as transformers' modules want to see a cache."""

    def __init__(self, cache: KVCache, layers: int) -> None:
        super().__init__(layers=[_CacheLayer(cache, layer) for layer in range(layers)])


class _CacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer. All lengths are relative to the cache's first live column."""

    is_sliding = False  # keeps all columns; transformers' masks hide those outside a window

    def __init__(self, cache: KVCache, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The stores are the ``KVCache``'s own."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cache.write(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length, 0

    def get_seq_length(self) -> int:
        return self._cache.length - self._cache.new_columns

    def get_max_length(self) -> int:
        return -1
