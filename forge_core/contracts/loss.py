"""What a loss is given and returns. Torch is imported for type checking only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
