"""The models that plugins ship, for ``forge model``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import ModelMaker, PluginError

if TYPE_CHECKING:
    from forge_core.plugins.manager import PluginManager


def model_makers(plugins: PluginManager) -> dict[str, ModelMaker]:
    """Name -> what makes the model.

    Raises:
        PluginError: a plugin contributes something else, or two have one name.
    """
    makers: dict[str, ModelMaker] = {}
    for contributed in plugins.hook.forge_models():
        for maker in contributed:
            if not isinstance(maker, ModelMaker):
                raise PluginError(
                    f"forge_models yielded a {type(maker).__name__}, not a ModelMaker"
                )
            if maker.name in makers:
                raise PluginError(
                    f"model {maker.name!r} is provided twice; leave one of the plugins out "
                    "(forge -p no:NAME)"
                )
            makers[maker.name] = maker
    return makers
