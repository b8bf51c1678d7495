"""What a plugin's component must look like, checked where it is built and used.

An author who returns the wrong thing gets one line that names the component, the plugin and what
was expected, instead of a ``TypeError`` from somewhere in the kernel.
"""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forge_core.errors import ForgeError, PluginError
from forge_core.types import Task

if TYPE_CHECKING:
    from forge_core.component import Selection
    from forge_core.protocols import Dataset

METHODS: Mapping[str, Sequence[str]] = {
    "recipe": ("plan", "run"),
    "dataset": ("__len__", "__getitem__"),
    "environment": ("start",),
    "loss": ("__call__",),
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
"""Family -> methods of its protocol in ``forge_core.protocols``."""

SYNC: Mapping[str, Sequence[str]] = {
    "recipe": ("plan",),
    "environment": ("start",),
    "loss": ("__call__",),
    "tracker": METHODS["tracker"],
}
"""Methods that are called without ``await``."""

ASYNC: Mapping[str, Sequence[str]] = {"recipe": ("run",), "runtime": METHODS["runtime"]}
"""Methods whose result is awaited."""

SECTIONS = (
    "dataset",
    "environment",
    "eval_dataset",
    "generator",
    "loss",
    "reference",
    "rewards",
    "trainer",
    "transport",
)
"""What a recipe may require."""

NAMES: Mapping[str, Sequence[str]] = {"recipe": ("requires", "provides"), "loss": ("needs",)}
"""Attributes that are sets of names."""


def title(selection: Selection[Any]) -> str:
    """The component for messages, such as ``recipe 'rft' (plugin acme-rft)``."""
    plugin = f" (plugin {selection.plugin})" if selection.plugin else ""
    return f"{selection.family} {selection.name!r}{plugin}"


def check_built(selection: Selection[Any], built: Any) -> None:
    """What ``build`` returned has the methods and attributes of its family.

    Raises:
        PluginError: names the component, its plugin and what was expected.
    """
    family = selection.family
    methods = METHODS.get(family, ())
    missing = [name for name in methods if not callable(getattr(built, name, None))]
    if missing or inspect.isclass(built):
        what = "None" if built is None else _described(built)
        raise PluginError(
            f"{title(selection)}: build returned {what}; expected an object with "
            f"{_listed(methods)}" + (f" (missing: {', '.join(missing)})" if missing else "")
        )
    for name in ASYNC.get(family, ()):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(built, name))):
            raise PluginError(f"{title(selection)}: {name} must be a coroutine: write `async def`")
    for name in SYNC.get(family, ()):
        function = getattr(built, name)
        if name == "__call__" and not inspect.isroutine(built):
            function = type(built).__call__
        elif name == "__call__":
            function = built
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            raise PluginError(f"{title(selection)}: {name} must not be async")
    for name in NAMES.get(family, ()):
        value = getattr(built, name, None)
        if not isinstance(value, Set) or not all(isinstance(item, str) for item in value):
            raise PluginError(
                f"{title(selection)}: {name} must be a frozenset of names, such as "
                f"{name} = frozenset({{{_example(value)!r}}}); not {_described(value)}"
            )
    if family == "environment":
        turns = getattr(built, "max_turns", None)
        if not isinstance(turns, int) or turns < 1:
            raise PluginError(
                f"{title(selection)}: max_turns must be an int of at least 1, not {turns!r}"
            )


def steps_planned(selection: Selection[Any], steps: Any) -> int:
    """What a recipe's ``plan`` returned, as a number of optimizer steps.

    Raises:
        PluginError: it is not a whole number of at least 1.
    """
    try:
        number = operator.index(steps)
    except TypeError:
        number = 0
    if number < 1 or isinstance(steps, bool):
        raise PluginError(
            f"{title(selection)}: plan returned {steps!r}; it must return the stage's optimizer "
            "steps, an int of at least 1 (forge_core.run.plan.steps_for computes it)"
        )
    return number


def check_task(selection: Selection[Any], dataset: Dataset, index: int) -> Task:
    """The item of a dataset at an index, which is a task.

    Raises:
        PluginError: it is something else, or reading it raised.
    """
    with blaming(selection, f"item {index}"):
        task = dataset[index]
    if not isinstance(task, Task):
        shown = repr(task) if len(repr(task)) <= 80 else repr(task)[:77] + "..."
        raise PluginError(
            f"{title(selection)}: item {index} is a {type(task).__name__} ({shown}), "
            "not a forge_core.Task"
        )
    return task


def check_sections(selection: Selection[Any], requires: Iterable[str]) -> None:
    """Every section that a recipe requires is one.

    Raises:
        PluginError: names what is unknown and what is allowed.
    """
    for name in sorted(set(requires) - set(SECTIONS)):
        near = difflib.get_close_matches(name, SECTIONS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PluginError(
            f"{title(selection)}: requires names {name!r}, which is not a section of a stage; "
            f"{hint}(allowed: {', '.join(SECTIONS)})"
        )


@contextmanager
def blaming(selection: Selection[Any], doing: str) -> Iterator[None]:
    """Exceptions that are no ``ForgeError`` are raised as a ``PluginError`` of this component.

    Args:
        selection: the component whose code runs in the block.
        doing: what it does, such as ``plan``.

    Raises:
        PluginError: names the component, its plugin, and the exception.
    """
    try:
        yield
    except ForgeError:
        raise
    except Exception as error:
        raise PluginError(f"{title(selection)}: {doing} failed: {described(error)}") from error


def described(error: BaseException) -> str:
    """Type and message of an exception, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _described(value: object) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float | list | tuple | dict):
        return repr(value)
    return f"a {type(value).__name__}"


def _example(value: object) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) and value else "advantages"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
