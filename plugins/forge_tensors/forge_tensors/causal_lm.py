"""A Hugging Face causal language model that scores packed batches.

Three quick ways and their slow, general ones, chosen once when a model is loaded, by trying:

- packed attention (``attention.py``), or padded rows with an attention mask;
- the head applied to trained tokens in chunks (``logprobs.py``), or the model's own forward pass,
  a few sequences at a time.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from forge_core import OutputNeeds, UsageError
from forge_models.rope import length_boundaries
from forge_tensors import attention
from forge_tensors.batch import PackedBatch
from forge_tensors.logprobs import (
    NOTHING,
    LogitShape,
    Scores,
    Terms,
    Tokens,
    chunk_bytes_on,
    scores_of,
    token_logprobs,
)
from forge_tensors.rows import gather_rows

_TRIAL_LENGTHS = (7, 4, 5)


class CausalLM:
    """Logprobs of the trained tokens of a packed batch.

    Args:
        model: any causal language model of transformers; it is kept in evaluation mode, so that
            the same tokens get the same logprobs in every call.
        packed: lay sequences end to end. False: pad them and mask the padding.

    A model that cannot be run packed (sliding windows, attention of its own, recurrent layers) is
    run padded, with a warning; so is one whose packed output differs from its plain one in a trial.
    Where rotary frequencies depend on the length, sequences that need different ones are run apart.
    """

    def __init__(self, model: PreTrainedModel, *, packed: bool = True) -> None:
        self.model = model.eval()
        self._shape = _logit_shape(model.config.get_text_config())
        self._boundaries = length_boundaries(model.config.get_text_config())
        kind = model.config.model_type
        with torch.no_grad():
            self.chunked = self._try_head()
            self.packed = packed and self.chunked and self._try_packed()
        if not self.chunked:
            warnings.warn(
                f"{kind}: its logits are not hidden states times a matrix; its own forward pass "
                "is used, which needs more memory",
                stacklevel=2,
            )
        elif packed and not self.packed:
            warnings.warn(f"{kind}: cannot run packed; sequences are padded instead", stacklevel=2)

    def score(
        self,
        batch: PackedBatch,
        *,
        temperature: float = 1.0,
        needs: OutputNeeds = NOTHING,
        terms: Terms | None = None,
    ) -> Scores:
        """Logprobs of the N trained tokens, and what else is asked for.

        Args:
            batch: on the model's device.
            temperature: logits are divided by it.
            needs: what else to give: ``entropy``, ``top_logprobs`` and ``hidden_states``; the last
                for ``values`` too, which are made elsewhere.
            terms: what to make of the log-probabilities of the vocabulary; None: nothing.

        Returns:
            float32; hidden states in the type that the model computes in.

        Raises:
            UsageError: hidden states are asked for of a model whose own forward pass is used.
        """
        if (needs.hidden_states or needs.values) and not self.chunked:
            raise UsageError(
                f"model: the loss needs hidden_states or values, and the logits of "
                f"{self.model.config.model_type} are not hidden states times a matrix"
            )
        if batch.targets.numel() == 0:
            return self._score_nothing(batch, needs, terms)
        regimes = self._regimes(batch.lengths)
        if len(regimes) > 1:
            return self._score_by_regime(batch, regimes, temperature, needs, terms)
        if not self.chunked:
            return self._score_by_forward(batch, temperature, needs, terms)
        whole = self._packed_hidden(batch) if self.packed else self._padded_hidden(batch)
        hidden = gather_rows(whole, batch.targets - 1)
        head = self.model.get_output_embeddings()
        scale, softcap = self._shape
        return token_logprobs(
            hidden,
            head.weight,
            batch.tokens[batch.targets],
            bias=head.bias,
            shape=LogitShape(scale, softcap, temperature),
            needs=needs,
            terms=terms,
        )

    def _score_nothing(self, batch: PackedBatch, needs: OutputNeeds, terms: Terms | None) -> Scores:
        """Of no trained token."""
        config = self.model.config.get_text_config()
        device = batch.tokens.device
        log_p = torch.zeros(0, config.vocab_size, device=device, requires_grad=True)
        scores = scores_of(log_p, batch.targets, needs, terms, slice(0, 0))
        if needs.hidden_states or needs.values:
            hidden = torch.zeros(0, config.hidden_size, device=device, requires_grad=True)
            scores = scores._replace(hidden_states=hidden)
        return scores

    def _regimes(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of the sequences that may share a forward pass: all, for nearly every model."""
        groups: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            groups.setdefault(bisect_left(self._boundaries, length), []).append(index)
        return list(groups.values())

    def _score_by_regime(
        self,
        batch: PackedBatch,
        regimes: list[list[int]],
        temperature: float,
        needs: OutputNeeds,
        terms: Terms | None,
    ) -> Scores:
        """A forward pass for each group of sequences with the same rotary frequencies."""
        places, parts = [], []
        for sequences in regimes:
            part, trained = batch.select(sequences)
            places.append(trained)
            theirs = None if terms is None else _of_part(terms, trained)
            parts.append(self.score(part, temperature=temperature, needs=needs, terms=theirs))
        order = torch.cat(places).argsort()
        return Scores.joined(parts).map(lambda values: values[order])

    def _packed_hidden(self, batch: PackedBatch) -> torch.Tensor:
        """Output of the model below its head, sequences end to end. [T, H]"""
        output = self.model.base_model(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            packed_layout=attention.plan(batch.lengths, batch.tokens.device),
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _padded_hidden(self, batch: PackedBatch) -> torch.Tensor:
        """The same with a row for each sequence. [T, H]"""
        tokens, mask = _pad(batch.tokens, batch.lengths)
        output = self.model.base_model(input_ids=tokens, attention_mask=mask, use_cache=False)
        rows = mask.flatten().nonzero().squeeze(1)
        return gather_rows(output.last_hidden_state.flatten(0, 1), rows)

    def _score_by_forward(
        self, batch: PackedBatch, temperature: float, needs: OutputNeeds, terms: Terms | None
    ) -> Scores:
        """The general way: whole logits of a few sequences, dropped and computed again."""
        vocabulary = self.model.config.get_text_config().vocab_size
        most = max(1, chunk_bytes_on(batch.tokens.device) // (4 * vocabulary * max(batch.lengths)))
        trained = torch.zeros_like(batch.tokens, dtype=torch.bool).index_fill_(0, batch.targets, 1)
        rows = torch.split(batch.tokens, list(batch.lengths))
        masks = torch.split(trained, list(batch.lengths))
        parts = []
        done = 0
        for start in range(0, len(rows), most):
            part = slice(start, start + most)
            count = sum(int(mask.sum()) for mask in masks[part])
            if not count:
                continue
            tokens, real = _pad(torch.cat(rows[part]), batch.lengths[part])
            targets, _ = _pad(torch.cat(masks[part]), batch.lengths[part])
            which = slice(done, done + count)
            done += count
            arguments = (tokens, real, targets, temperature, needs, terms, which)
            parts.append(checkpoint(self._forward, *arguments, use_reentrant=False))
        return Scores.joined(parts)

    def _forward(
        self,
        tokens: torch.Tensor,
        real: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        needs: OutputNeeds,
        terms: Terms | None,
        which: slice,
    ) -> Scores:
        logits = self.model(input_ids=tokens, attention_mask=real, use_cache=False).logits
        wide = torch.promote_types(logits.dtype, torch.float32)
        chosen = targets[:, 1:]
        log_p = (logits[:, :-1][chosen].to(wide) / temperature).log_softmax(-1)
        return scores_of(log_p, tokens[:, 1:][chosen], needs, terms, which)

    def _try_packed(self) -> bool:
        """Whether packed hidden states are those of each sequence by itself."""
        if not _attends_plainly(self.model.config.get_text_config()):
            return False
        own = self.model.config._attn_implementation
        batch = self._trial()
        expected = torch.cat(
            [self._alone(row) for row in torch.split(batch.tokens, list(batch.lengths))]
        )
        attention.register()
        try:
            self.model.set_attn_implementation(attention.PACKED)
            fits = _close(self._packed_hidden(batch), expected)
        except (NotImplementedError, TypeError, ValueError, RuntimeError):
            fits = False
        if not fits:
            self.model.set_attn_implementation(own)
        return fits

    def _alone(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model.base_model(
            input_ids=tokens[None], use_cache=False
        ).last_hidden_state[0]
        return hidden

    def _try_head(self) -> bool:
        """Whether the head, as we apply it, gives the model's own logits."""
        head = self.model.get_output_embeddings()
        if not isinstance(head, torch.nn.Linear) or self.model.base_model is self.model:
            return False
        batch = self._trial()
        tokens, mask = _pad(batch.tokens, batch.lengths)
        output = self.model(input_ids=tokens, attention_mask=mask, use_cache=False)
        scale, softcap = self._shape
        logits = head(self._padded_hidden(batch)) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return _close(logits, output.logits[mask])

    def _trial(self) -> PackedBatch:
        """A small batch of random tokens."""
        from forge_core import TrainSequence
        from forge_tensors.batch import pack

        generator = torch.Generator().manual_seed(0)
        vocabulary = self.model.config.get_text_config().vocab_size
        rows = [
            torch.randint(vocabulary, (length,), generator=generator).tolist()
            for length in _TRIAL_LENGTHS
        ]
        return pack([TrainSequence(row, [False] * len(row)) for row in rows], self.model.device)


def _logit_shape(config: Any) -> tuple[float, float | None]:
    """Scale and soft cap of the logits as the model's config names them."""
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    return scale, getattr(config, "final_logit_softcapping", None)  # Gemma


def _attends_plainly(config: Any) -> bool:
    """Whether every layer attends to all tokens before; short trials cannot tell."""
    layers = getattr(config, "layer_types", None)
    if layers:
        return set(layers) == {"full_attention"}
    windowed = getattr(config, "use_sliding_window", True) and getattr(
        config, "sliding_window", None
    )
    return not windowed and getattr(config, "attention_chunk_size", None) is None


def _of_part(terms: Terms, places: torch.Tensor) -> Terms:
    """Terms of tokens that are some of the batch's, at these places. [n] int64"""

    def of_part(log_softmax: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return terms(log_softmax, places[tokens])

    return of_part


def _pad(tokens: torch.Tensor, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded at their end with zeros, and the mask of what is real. [S, L] each"""
    rows = torch.nn.utils.rnn.pad_sequence(
        list(torch.split(tokens, list(lengths))), batch_first=True
    )
    places = torch.arange(rows.shape[1], device=tokens.device)
    return rows, places < torch.tensor(lengths, device=tokens.device)[:, None]


def _close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for rounding: within 30 units of the type's precision, relative to the largest."""
    largest = float(expected.abs().max())
    tolerance = max(1e-5, 30 * torch.finfo(expected.dtype).eps) * largest
    return bool((actual - expected).abs().max() <= tolerance)
