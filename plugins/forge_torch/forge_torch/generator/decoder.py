"""What the engine needs of a model, and the choice between the ways to run it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from forge_core.errors import DataError
from forge_torch.generator.cache import KVCache
from forge_torch.generator.hf_decoder import HFDecoder
from forge_torch.generator.llama_decoder import LlamaDecoder

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
def choose_decoder(model: PreTrainedModel, reload: Callable[[], PreTrainedModel]) -> Decoder:
    """The fastest decoder that computes what the model's own forward pass does, as just measured.

    Args:
        model: in evaluation mode; may be taken apart.
        reload: gives the model anew, for when a decoder that took it apart proves wrong.

    Raises:
        DataError: none does; the architecture keeps more than keys and values between tokens.
    """
    name = model.config.model_type
    expected = _reference_logits(model)
    tolerance = _tolerance(expected, model.dtype)
    if LlamaDecoder.supports(model):
        decoder = _try(LlamaDecoder, model, expected, tolerance)
        if not isinstance(decoder, str):
            return decoder
        _log.warning("generator torch decodes %s the slow way: %s", name, decoder)
        model = reload()
    decoder = _try(HFDecoder, model, expected, tolerance)
    if isinstance(decoder, str):
        raise DataError(f"generator torch cannot decode {name} models: {decoder}")
    return decoder


_PROBES = ((1, 2, 3, 4, 5, 6, 7), (3, 2, 1, 0))
"""Prompt lengths differ, so that padding is tried; the last two tokens of each are decoded."""


def _probes(vocab_size: int) -> list[list[int]]:
    return [[token % vocab_size for token in probe] for probe in _PROBES]


def _reference_logits(model: PreTrainedModel) -> torch.Tensor:
    """Logits of the model's forward pass at the last three tokens of each probe. [2, 3, V]"""
    vocab_size = model.get_input_embeddings().weight.shape[0]
    logits = []
    for probe in _probes(vocab_size):
        ids = torch.tensor([probe], device=model.device)
        logits.append(model(input_ids=ids, use_cache=False).logits[0, -3:].float())
    return torch.stack(logits)


def _try(
    kind: Callable[[PreTrainedModel], Decoder],
    model: PreTrainedModel,
    expected: torch.Tensor,
    tolerance: float,
) -> Decoder | str:
    """The decoder, or what is wrong with it."""
    try:
        decoder = kind(model)
        difference = float((_cached_logits(decoder, expected.device) - expected).abs().max())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if difference <= tolerance:
        return decoder
    return (
        f"with a cache of keys and values, logits differ from the forward pass by {difference:.1e} "
        f"(allowed: {tolerance:.1e})"
    )


def _cached_logits(decoder: Decoder, device: torch.device) -> torch.Tensor:
    """The same as ``_reference_logits``, by a prefill and two steps of both probes together."""
    probes = _probes(decoder.vocab_size)
    prompts = [probe[:-2] for probe in probes]
    width = max(map(len, prompts))
    padded = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
    cache = decoder.new_cache()
    cache.begin([len(prompt) for prompt in prompts])
    logits = [decoder.forward(padded, cache)]
    for place in (-2, -1):
        cache.extend()
        tokens = torch.tensor([[probe[place]] for probe in probes], device=device)
        logits.append(decoder.forward(tokens, cache))
    return torch.stack(logits, dim=1).float()


def _tolerance(expected: torch.Tensor, dtype: torch.dtype) -> float:
    """1e-4 of the largest logit; in half precision, what its rounding comes to."""
    return float(expected.abs().max()) * (1e-4 if dtype == torch.float32 else 5e-2)
