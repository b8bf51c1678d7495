"""What a loss is given and returns. Torch is imported for type checking only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge_core.contracts.errors import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The N trained tokens of a micro-batch.

    Args:
        sequence: which of the S sequences each token belongs to. [N] int64
        num_sequences: S, also counting sequences without any trained token.
        fields: what the recipe gave, one value for each trained token. [N] float32
        group: which of the G groups each sequence belongs to (``TrainSequence.group``); one that
            stands alone has a group of its own. None where nothing is grouped. [S] int64
        num_groups: G; all sequences of each are here.
    """

    sequence: torch.Tensor
    num_sequences: int
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)
    group: torch.Tensor | None = None
    num_groups: int = 0

    def field(self, name: str) -> torch.Tensor:
        """The field of that name. [N]

        Raises:
            UsageError: the recipe does not give it; names what it gives.
        """
        try:
            return self.fields[name]
        except KeyError:
            given = ", ".join(sorted(self.fields)) or "none"
            raise UsageError(
                f"the loss needs the field {name!r}, which the recipe does not give "
                f"(it gives: {given})"
            ) from None

    def part(self, tokens: slice | torch.Tensor) -> LossBatch:
        """Some of the N tokens; sequences and groups keep their numbers.

        Args:
            tokens: which, as a slice or as indices. [n] int64
        """
        fields = {name: values[tokens] for name, values in self.fields.items()}
        return replace(self, sequence=self.sequence[tokens], fields=fields)


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The K most probable next tokens at each of N places.

    Args:
        tokens: their ids, the most probable first. [N, K] int64
        logprobs: their natural-log probabilities over the whole vocabulary (the logits less their
            logsumexp), with gradient. [N, K] float32
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor


OUTPUTS = ("entropy", "top_logprobs", "log_softmax", "hidden_states", "values")
"""What a loss may ask of the policy beside logprobs. Every trainer gives the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputNeeds:
    """Which outputs of the policy a loss asks for: nothing else is computed.

    Args:
        entropy: of the next-token distributions.
        top_logprobs: K, for those of the K most probable tokens; 0: none.
        log_softmax: of the whole vocabulary, in chunks of tokens, for the loss's ``terms``.
        hidden_states: the model's output below its head.
        values: of a value head, which the trainer trains and keeps with the policy.
    """

    entropy: bool = False
    top_logprobs: int = 0
    log_softmax: bool = False
    hidden_states: bool = False
    values: bool = False

    @classmethod
    def of(cls, needs: Iterable[str]) -> OutputNeeds:
        """Those among a loss's needs; the others are fields.

        Raises:
            ValueError: ``top_logprobs`` does not say how many, or another output does.
        """
        found: dict[str, Any] = {}
        for need in needs:
            name, colon, number = need.partition(":")
            if name not in OUTPUTS:
                continue
            if name != "top_logprobs":
                if colon:
                    raise ValueError(f"{need!r}: write {name!r}, without a number")
                found[name] = True
                continue
            if not number.isdecimal() or int(number) < 1 or name in found:
                raise ValueError(f"{need!r}: say once how many, as in 'top_logprobs:64'")
            found[name] = int(number)
        return cls(**found)

    @property
    def names(self) -> frozenset[str]:
        """Of the outputs that are asked for."""
        return frozenset(name for name in OUTPUTS if getattr(self, name))


def field_needs(needs: Iterable[str]) -> frozenset[str]:
    """The fields among a loss's needs, which the recipe gives."""
    return frozenset(need for need in needs if need.partition(":")[0] not in OUTPUTS)


@dataclass(frozen=True, slots=True)
class ModelOutputs:
    """What the policy computes for N trained tokens beside their logprobs, with gradient.

    Args:
        given: what the loss asked for, by the names of the properties.
    """

    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entropy(self) -> torch.Tensor:
        """Of the next-token distributions, in nats. [N]"""
        return self._output("entropy")  # type: ignore[no-any-return]

    @property
    def top_logprobs(self) -> TopLogprobs:
        """The K most probable tokens, for ``top_logprobs:K``."""
        return self._output("top_logprobs")  # type: ignore[no-any-return]

    @property
    def terms(self) -> torch.Tensor:
        """What the loss's ``terms`` made of the log-probabilities of the whole vocabulary, for
        ``log_softmax``. [N] or [N, K]"""
        return self._output("terms", "log_softmax")  # type: ignore[no-any-return]

    @property
    def hidden_states(self) -> torch.Tensor:
        """Output of the model below its head, where each token is predicted; in the type that the
        model computes in. [N, H]"""
        return self._output("hidden_states")  # type: ignore[no-any-return]

    @property
    def values(self) -> torch.Tensor:
        """Of the value head, where each token is predicted. [N] float32"""
        return self._output("values")  # type: ignore[no-any-return]

    def _output(self, name: str, need: str = "") -> Any:
        try:
            return self.given[name]
        except KeyError:
            raise UsageError(
                f"the loss uses {name} and does not say so: add {need or name!r} to its needs"
            ) from None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss returns: never a mean, so that any split of a batch adds up to the same.

    Args:
        sum: the objective to minimize, summed over tokens (or sequences). Scalar with gradient.
        count: what the sum is divided by in the end, summed likewise: tokens, sequences, ...
        metrics: name -> (sum, count), detached; reduced to sum / count over the whole step.
        maxima: name -> value, detached; the largest one of the whole step is reported.
    """

    sum: torch.Tensor
    count: torch.Tensor | float
    metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]] = field(
        default_factory=dict
    )
    maxima: Mapping[str, torch.Tensor | float] = field(default_factory=dict)
