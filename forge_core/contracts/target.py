"""``build`` of a component, written as ``module:attribute``: imported when it is called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_core.contracts.context import BuildContext


@dataclass(frozen=True)
class Target:
    """A function or class by its name. Picklable, and called like what it names.

    Args:
        reference: ``module:attribute``.
    """

    reference: str

    def load(self) -> Callable[..., Any]:
        """Import the module; the attribute.

        Raises:
            ImportError: the module cannot be imported.
            AttributeError: it has no such attribute.
        """
        module, _, attribute = self.reference.partition(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return loaded

    def __call__(self, settings: Any, context: BuildContext) -> Any:
        return call_build(self.load(), settings, context)


def call_build(build: Callable[..., Any], settings: Any, context: BuildContext) -> Any:
    """Call ``build`` with ``(settings, context)``, or with the first of them if it takes fewer."""
    return build(*(settings, context)[: taken(build)])


def taken(build: Callable[..., Any]) -> int:
    """How many of ``(settings, context)`` a ``build`` takes.

    Raises:
        TypeError: it cannot be called with any of the first of them.
    """
    signature = inspect.signature(build)
    for count in (2, 1, 0):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    raise TypeError("must take (settings, context), or the first of them")
