"""What ``build`` returns has the methods and attributes of its family's protocol."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from forge_core.contracts.blame import title
from forge_core.contracts.errors import PluginError

if TYPE_CHECKING:
    from forge_core.contracts.selection import Selection

METHODS: Mapping[str, Sequence[str]] = {
    "recipe": ("plan", "run"),
    "dataset": ("__len__", "__getitem__"),
    "environment": ("start",),
    "loss": ("__call__",),
    "optimizer": ("__call__",),
    "schedule": ("__call__",),
    "advantage": ("__call__",),
    "reward": ("__call__",),
    "generator": ("generate", "update_weights", "stats", "close"),
    "trainer": (
        "train_step",
        "logprobs",
        "hold_reference",
        "publish",
        "save",
        "load",
        "close",
    ),
    "transport": ("publish", "fetch", "drop", "versions", "close"),
    "tracker": ("start", "step", "event", "episodes", "finish"),
    "runtime": ("spawn", "close"),
}
"""Family -> methods of its protocol in ``protocols.py``."""

SYNC: Mapping[str, Sequence[str]] = {
    "recipe": ("plan",),
    "loss": ("__call__",),
    "optimizer": ("__call__",),
    "schedule": ("__call__",),
    "advantage": ("__call__",),
    "tracker": METHODS["tracker"],
}
"""Methods that are called without ``await``."""

ASYNC: Mapping[str, Sequence[str]] = {
    "recipe": ("run",),
    "environment": ("start",),
    "runtime": METHODS["runtime"],
}
"""Methods whose result is awaited."""


Takes = Literal["sample", "samples", "group"]
"""Name of a reward's first parameter: what one call of it judges."""


def reward_takes(reward: Callable[..., Any]) -> Takes:
    """What one call of a reward judges: the name of its first parameter says it.

    Raises:
        TypeError: it has another name.
    """
    names = list(inspect.signature(reward).parameters)
    first = names[0] if names else "nothing"
    if first not in get_args(Takes):
        raise TypeError(
            f"its first parameter is called {first!r}; it says what one call judges: sample (one "
            "RewardSample), samples (many) or group (all of one task's group)"
        )
    return cast(Takes, first)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called like one, is ``async``."""
    if isinstance(function, functools.partial):
        return is_async(function.func)
    if not inspect.isroutine(function):
        function = type(function).__call__
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def check_built(selection: Selection[Any], built: Any) -> None:
    """What ``build`` returned has the methods and attributes of its family.

    Raises:
        PluginError: names the component, its plugin and what was expected.
    """
    family = selection.family
    methods = METHODS.get(family, ())
    missing = [name for name in methods if not callable(getattr(built, name, None))]
    # An optimizer's class is what makes it.
    if missing or (inspect.isclass(built) and family != "optimizer"):
        what = "None" if built is None else _described(built)
        raise PluginError(
            f"{title(selection)}: build returned {what}; expected an object with "
            f"{_listed(methods)}" + (f" (missing: {', '.join(missing)})" if missing else "")
        )
    for name in ASYNC.get(family, ()):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(built, name))):
            raise PluginError(f"{title(selection)}: {name} must be a coroutine: write `async def`")
    for name in SYNC.get(family, ()):
        if is_async(built if name == "__call__" else getattr(built, name)):
            raise PluginError(f"{title(selection)}: {name} must not be async")
    if family == "loss" and selection.outputs.log_softmax:
        terms = getattr(built, "terms", None)
        if not callable(terms) or is_async(terms):
            raise PluginError(
                f"{title(selection)}: needs log_softmax, and so a method "
                "`terms(self, log_softmax, batch)`"
            )
    if family == "reward":
        try:
            reward_takes(built)
        except TypeError as error:
            raise PluginError(f"{title(selection)}: {error}") from None
    if family == "environment":
        turns = getattr(built, "max_turns", None)
        if not isinstance(turns, int) or turns < 1:
            raise PluginError(
                f"{title(selection)}: max_turns must be an int of at least 1, not {turns!r}"
            )


def _described(value: object) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float | list | tuple | dict):
        return repr(value)
    return f"a {type(value).__name__}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
