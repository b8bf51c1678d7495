"""Whether a decoder computes what the model's own forward pass does, measured in rounding errors.

How far two correct computations of the same logits may differ depends on the model: trained ones
amplify rounding by orders of magnitude more than random ones, and more on some tokens than on
others. So the forward pass is repeated with every module's output off by one rounding error, and
what that does to the logits is the unit in which a decoder's difference is measured.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from forge_core import DataError
from forge_models.prompts import encode_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from forge_torch.generator.decoder import Decoder

_LENGTHS = (13, 8, 3)
"""Of the test's sequences. They differ, so that padding is tried too; the last two tokens of each
are decoded from the cache."""

_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs; it cost $2.50, didn't it? "
    "Yes: x = y + 1, so the answer is 42."
)

_REPEATS = 3
"""Perturbed forward passes, of which the mean is taken."""

_ALLOWED_FULL, _ALLOWED_HALF = 50.0, 3.0
"""Most rounding errors that a decoder may be off by, in float32 and in half precision.

Half precision rounds the outputs of modules and sums in float32: correct decoders were 0.4 to 1.0
off. In float32 every addition within a product rounds too, in an order that each kernel chooses: 1
to 9. Faults were 5 and more off in half precision, 4e4 and more in float32.
"""


def ordinary_tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[int]:
    """Tokens to test a decoder on: those of ordinary text, never special or added ones.

    Trained models treat special tokens in odd places unlike any text, and amplify rounding there.

    Args:
        tokenizer: of the model. One that cannot encode the text (a small alphabet) gives tokens
            from its whole vocabulary.
        vocab_size: rows of the embedding.
    """
    special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    try:
        tokens = encode_text(_TEXT, tokenizer)
    except DataError:
        tokens = []
    ordinary = [token for token in tokens if token not in special and token < vocab_size]
    wanted = sum(_LENGTHS)
    if len(ordinary) >= wanted:
        return ordinary
    known = [token for token in range(min(len(tokenizer), vocab_size)) if token not in special]
    return random.Random(0).choices(known or range(vocab_size), k=wanted)


class SelfTest:
    """The model's logits at the last three tokens of each sequence, and how rounding moves them.

    Both are root mean squares over the vocabulary, compared token by token: a fault that shows in
    one place is not hidden by the rounding in another.

    Args:
        model: in evaluation mode, not yet taken apart.
        tokens: ordinary ones, see ``ordinary_tokens``.
    """

    def __init__(self, model: PreTrainedModel, tokens: Sequence[int]) -> None:
        self._device = model.device
        self._sequences = _sequences(tokens, _window(model))
        self.allowed = _ALLOWED_FULL if model.dtype == torch.float32 else _ALLOWED_HALF
        self._expected = self._forward(model)
        squares = []
        for seed in range(_REPEATS):
            with _one_rounding_off(model, seed):
                squares.append((self._forward(model) - self._expected).square().mean(-1))
        self._rounding = torch.stack(squares).mean(0).sqrt()

    def fault(self, decoder: Decoder) -> str | None:
        """What is wrong with the decoder, or None."""
        difference = (self._decode(decoder) - self._expected).square().mean(-1).sqrt()
        if bool((difference <= self.allowed * self._rounding).all()):
            return None
        errors = (difference / self._rounding).nan_to_num(torch.inf).flatten()
        worst = int(errors.argmax())
        return (
            "with a cache of keys and values, logits differ from the forward pass by "
            f"{float(difference.flatten()[worst]):.1e}, which is {float(errors[worst]):.1f} times "
            f"what rounding does to them (allowed: {self.allowed:.0f} times)"
        )

    def _forward(self, model: PreTrainedModel) -> torch.Tensor:
        """Logits of forward passes over whole sequences. [sequences, 3, V]"""
        logits = []
        for sequence in self._sequences:
            ids = torch.tensor([sequence], device=self._device)
            logits.append(model(input_ids=ids, use_cache=False).logits[0, -3:].float())
        return torch.stack(logits)

    def _decode(self, decoder: Decoder) -> torch.Tensor:
        """The same by a prefill and two steps of all sequences together. [sequences, 3, V]"""
        prompts = [sequence[:-2] for sequence in self._sequences]
        width = max(map(len, prompts))
        padded = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=self._device)
        cache = decoder.new_cache()
        cache.begin([len(prompt) for prompt in prompts])
        logits = [decoder.forward(padded, cache)]
        for place in (-2, -1):
            cache.extend()
            column = [[sequence[place]] for sequence in self._sequences]
            logits.append(decoder.forward(torch.tensor(column, device=self._device), cache))
        return torch.stack(logits, dim=1).float()


def _sequences(tokens: Sequence[int], window: int) -> list[list[int]]:
    """One sequence after the other from the tokens, each cut to the model's window."""
    sequences, start = [], 0
    for length in _LENGTHS:
        sequences.append(list(tokens[start : start + min(length, window)]))
        start += length
    return sequences


def _window(model: PreTrainedModel) -> int:
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit or max(_LENGTHS)


@contextmanager
def _one_rounding_off(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """Every module's output is off by up to one unit in the last place of its type."""
    randoms = torch.Generator(model.device).manual_seed(seed)

    def nudge(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return None  # keeps the output
        exact = output.float()
        share = torch.empty_like(exact).uniform_(-1, 1, generator=randoms)
        return torch.addcmul(exact, exact, share, value=_precision(output)).to(output.dtype)

    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    hooks = [module.register_forward_hook(nudge) for module in leaves]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _precision(output: torch.Tensor) -> float:
    """Relative rounding error of products that give such an output."""
    if output.dtype == torch.float32 and output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-10  # TF32 keeps 10 bits of the factors
    return torch.finfo(output.dtype).eps
