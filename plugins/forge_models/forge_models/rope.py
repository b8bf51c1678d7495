"""Rotary position embeddings whose frequencies depend on how long a sequence is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def length_boundaries(config: Any) -> tuple[int, ...]:
    """Lengths in tokens beyond which a model uses other rotary frequencies, lowest first.

    ``longrope`` (Phi-3 and its successors; LongRoPE, arXiv:2402.13753) has short factors up to
    ``original_max_position_embeddings`` and long ones beyond. Transformers chooses once for a
    forward pass, by its longest sequence: two sequences on different sides of a boundary must not
    share one. Empty for other types: ``dynamic`` changes only beyond the model's window, and the
    others never do.

    Args:
        config: transformers' config of the text model.
    """
    return _boundaries(getattr(config, "rope_parameters", None) or {}, None)


def stored_boundaries(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The same of a ``config.json``, in the present form or the older one of the hub's Phi-3."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return _boundaries(parameters, config.get("original_max_position_embeddings"))


def _boundaries(parameters: Mapping[str, Any], original: int | None) -> tuple[int, ...]:
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    found = {
        each.get("original_max_position_embeddings", original)
        for each in (nested or [parameters])  # one for each type of layer, or one for all
        if each.get("rope_type", each.get("type")) == "longrope"
    }
    return tuple(sorted(length for length in found if isinstance(length, int)))
