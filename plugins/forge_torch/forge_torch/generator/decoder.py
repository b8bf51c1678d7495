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


def choose_decoder(model: PreTrainedModel, reload: Callable[[], PreTrainedModel]) -> Decoder:
    """The fastest decoder that computes what the model's own forward pass does, as just measured.

    Args:
        model: in evaluation mode; may be taken apart.
        reload: gives the model anew, for when a decoder that took it apart proves wrong.

    Raises:
        DataError: none does; the architecture keeps more than keys and values between tokens.
    """
    with torch.inference_mode():
        expected = _reference_logits(model)
        tolerance = _tolerance(expected, model.dtype)
        name = model.config.model_type
        if LlamaDecoder.supports(model):
            fast = LlamaDecoder(model)
            difference = _difference(fast, expected)
            if difference <= tolerance:
                return fast
            _log.warning(
                "fast decoding of %s differs from its forward pass by %.1e; decoding with the "
                "model's own modules",
                name,
                difference,
            )
            model = reload()
        general = HFDecoder(model)
        try:
            difference = _difference(general, expected)
        except Exception as error:
            raise DataError(
                f"generator torch cannot decode {name} models with a key-value cache: "
                f"{type(error).__name__}: {error}"
            ) from error
        if difference > tolerance:
            raise DataError(
                f"generator torch cannot decode {name} models: with a key-value cache, logits "
                f"differ from the forward pass by {difference:.1e}"
            )
        return general


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


def _difference(decoder: Decoder, expected: torch.Tensor) -> float:
    """Largest difference of any logit between cached decoding and the forward pass."""
    probes = _probes(decoder.vocab_size)
    device = expected.device
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
    difference = torch.stack(logits, dim=1).float() - expected
    return float(difference.abs().max().nan_to_num(torch.inf))


def _tolerance(expected: torch.Tensor, dtype: torch.dtype) -> float:
    """1e-4 of the largest logit; in half precision, what its rounding comes to."""
    return float(expected.abs().max()) * (1e-4 if dtype == torch.float32 else 5e-2)
