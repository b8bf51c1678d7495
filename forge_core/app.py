"""``Forge``: plugins, config and runs behind one object, from code as from the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_core.plugins.manager import PluginManager


class Forge:
    """An app: a set of plugins and what can be done with them. Nothing is shared between two.

    Args:
        plugins: modules or objects with hooks, beside those that are installed.
        discover: look for installed plugins.
        disabled: plugins to leave out, by name.
    """

    def __init__(
        self,
        plugins: Sequence[object] = (),
        *,
        discover: bool = True,
        disabled: Collection[str] = (),
    ) -> None:
        self._given = tuple(plugins)
        self._discover = discover
        self._disabled = tuple(disabled)

    @cached_property
    def plugins(self) -> PluginManager:
        """Found and loaded when they are first asked for, so that ``--help`` costs nothing."""
        from forge_core.plugins.manager import PluginManager

        return PluginManager(self._given, discover=self._discover, disabled=self._disabled)
