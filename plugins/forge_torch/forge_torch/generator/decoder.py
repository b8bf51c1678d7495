"""What the engine needs of a model, and the choice between the ways to run it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from forge_core import DataError
from forge_torch.generator.cache import KVCache
from forge_torch.generator.hf_decoder import HFDecoder
from forge_torch.generator.llama_decoder import LlamaDecoder
from forge_torch.generator.self_test import SelfTest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


class Decoder(Protocol):
    """A model as a function from new tokens and a cache to next-token logits."""

    vocab_size: int

    def new_cache(self) -> KVCache:
        """An empty cache of the layout that this decoder works with."""
        ...

    def forward(self, tokens: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Run the cache's new columns and write their keys and values.

        Args:
            tokens: ids; anything before a row's start. [B, new columns]
            cache: after ``begin`` (its columns are all new) or ``extend`` (one is).

        Returns:
            Logits that follow the last column. [B, V]
        """
        ...

    def weights(self) -> Mapping[str, torch.Tensor]:
        """All weights by Hugging Face name, also tied ones.

        Each is a view that holds the elements in the order of the Hugging Face tensor, perhaps with
        its dimensions split: write with ``view.copy_(tensor.view_as(view))``.
        """
        ...

    def shapes(self) -> Mapping[str, torch.Size]:
        """The Hugging Face shapes of ``weights``."""
        ...


@torch.inference_mode()
def choose_decoder(
    model: PreTrainedModel, reload: Callable[[], PreTrainedModel], tokens: Sequence[int]
) -> Decoder:
    """The fastest decoder that computes what the model's own forward pass does, as just measured.

    Args:
        model: in evaluation mode; may be taken apart.
        reload: loads the model again, for when a decoder that took it apart proves wrong.
        tokens: to measure with, see ``ordinary_tokens``.

    Raises:
        DataError: none does; the architecture keeps more than keys and values between tokens.
    """
    name = model.config.model_type
    test = SelfTest(model, tokens)
    if LlamaDecoder.supports(model):
        decoder = _try(LlamaDecoder, model, test)
        if not isinstance(decoder, str):
            return decoder
        _log.warning("generator torch decodes %s the slow way: %s", name, decoder)
        model = reload()
    decoder = _try(HFDecoder, model, test)
    if isinstance(decoder, str):
        raise DataError(f"generator torch cannot decode {name} models: {decoder}")
    return decoder


def _try(
    kind: Callable[[PreTrainedModel], Decoder], model: PreTrainedModel, test: SelfTest
) -> Decoder | str:
    """The decoder, or what is wrong with it."""
    try:
        decoder = kind(model)
        fault = test.fault(decoder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return decoder if fault is None else fault
