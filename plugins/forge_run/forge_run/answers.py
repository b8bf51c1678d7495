"""What recipes and datasets return, checked where the answer arrives.

What methods of generators and trainers return is checked where a service calls them, what ``build``
returns in ``forge_core.contracts.built``.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from forge_core import PluginError, RunFailed, Selection, Task
from forge_core.contracts.blame import title

SECTIONS = (
    "advantage",
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
            "steps, an int of at least 1 (forge_core.steps_for computes it)"
        )
    return number


def check_is_task(selection: Selection[Any], task: object, index: int) -> Task:
    """The item of a dataset at an index, which is a task.

    Raises:
        PluginError: it is something else.
    """
    if not isinstance(task, Task):
        shown = repr(task) if len(repr(task)) <= 80 else repr(task)[:77] + "..."
        raise PluginError(
            f"{title(selection)}: item {index} is a {type(task).__name__} ({shown}), "
            "not a forge_core.Task"
        )
    return task


def check_advantages(
    selection: Selection[Any], rewards: Sequence[float], answer: Any
) -> list[float]:
    """What an advantage estimator returned, as one number for each reward.

    Raises:
        RunFailed: it is something else, or a number is not finite.
    """
    try:
        advantages = [float(each) for each in answer]
    except (TypeError, ValueError):
        raise RunFailed(
            f"{title(selection)}: returned {answer!r}, not a number for each reward"
        ) from None
    if len(advantages) != len(rewards):
        raise RunFailed(
            f"{title(selection)}: returned {len(advantages)} advantages for {len(rewards)} rewards"
        )
    if bad := [each for each in advantages if not math.isfinite(each)]:
        raise RunFailed(
            f"{title(selection)}: returned {bad[0]} for the rewards {list(rewards)}; an advantage "
            "is finite, also where all rewards are equal"
        )
    return advantages


def check_sections(selection: Selection[Any], added: Iterable[str] = ()) -> None:
    """Every section that a recipe requires is one.

    Args:
        selection: the recipe.
        added: sections that plugins have added.

    Raises:
        PluginError: names what is unknown and what is allowed.
    """
    known = (*SECTIONS, *added)
    for name in sorted(selection.requires - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PluginError(
            f"{title(selection)}: requires names {name!r}, which is not a section of a stage; "
            f"{hint}(allowed: {', '.join(known)})"
        )
