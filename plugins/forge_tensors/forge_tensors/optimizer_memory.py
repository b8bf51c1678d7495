"""Bytes of an optimizer's state, for ``forge plan``. Imports nothing heavy."""

from __future__ import annotations

from forge_core import BuildContext


def state_bytes(context: BuildContext, weights: int) -> dict[str, int]:
    """A term of ``Memory``: what the optimizer keeps for weights of so many bytes.

    An optimizer that does not tell is counted like Adam.
    """
    told = context.optimizer.state_values if context.optimizer is not None else 2
    if told is None:
        return {"optimizer (as Adam's)": 2 * weights}
    return {"optimizer": round(told * weights)}
