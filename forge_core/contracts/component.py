"""What a plugin contributes: a named component with typed settings and a way to build it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from forge_core.contracts.target import Target

if TYPE_CHECKING:
    from forge_core.contracts.context import BuildContext

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Component(Generic[T_co]):
    """One named implementation in a family. Each family has a type of its own, in ``families``.

    This one is for the families that plugins add (``forge_sections``).

    Args:
        name: what people write behind ``use:``; lower case, words joined by ``_``.
        settings: a light pydantic model (derive it from ``Settings``); the rest of the section.
        build: what makes the component: ``"module:attribute"`` of a class or function, which is
            imported then, so heavy packages are imported there and nowhere else. For components
            registered in code, a function will do. It is called with ``(settings, context)``, or
            with the first of them if it takes fewer.
        summary: one line for ``forge plugins``.
        check: module-level function ``(settings, context)`` that raises ``UsageError`` for what
            ``build`` would refuse, before anything starts (``forge run --dry-run`` too). The
            context's ``world_size`` is the number of ranks asked for, and for a runtime
            ``services`` says where the stage's replicas go; the model may not be there yet.
            Imports nothing heavy.
        default: selected where a config selects nothing in the family's section; of transports,
            the one with the narrowest reach that the ends are in. Trackers that say so are all on.
            Where two plugins say so of one family, a config has to select.
    """

    name: str
    settings: type[BaseModel]
    build: str | Callable[..., T_co]
    summary: str
    check: Callable[[Any, BuildContext], None] | None = None
    default: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.build, str):
            object.__setattr__(self, "build", Target(self.build))
