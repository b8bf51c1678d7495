"""What methods of components return, checked where the answer arrives.

An author whose generator returns ``None`` gets one line that names the component and what was
expected, instead of a ``TypeError`` from the recipe that used it. What ``build`` returns is checked
in ``forge_core.contracts.built``.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forge_core.contracts.blame import title
from forge_core.contracts.context import BuildContext
from forge_core.contracts.errors import PluginError, RunFailed
from forge_core.contracts.selection import Selection
from forge_core.contracts.types import (
    Completion,
    Sampling,
    StepResult,
    Task,
    TrainSequence,
    WeightManifest,
)

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

_ONE_ANSWER: Mapping[tuple[str, str], type] = {
    ("generator", "stats"): Mapping,
    ("trainer", "train_step"): StepResult,
    ("trainer", "publish"): WeightManifest,
}
"""Family and method -> what is returned. ``update_weights`` has its own check
(``forge_core.services.weight_update``)."""


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


def check_answer(
    selection: Selection[Any],
    context: BuildContext,
    method: str,
    arguments: Sequence[Any],
    answer: Any,
) -> None:
    """What a method returned is what the protocol of its family says.

    Args:
        selection: the component.
        context: what it was built with.
        method: that was called.
        arguments: of the call.
        answer: what it returned.

    Raises:
        RunFailed: it is not; names the component, the method, and what was expected.
    """
    expected = _ONE_ANSWER.get((selection.family, method))
    wrong = ""
    if expected is not None and not isinstance(answer, expected):
        wrong = f"{_kind(answer)}, not a {expected.__name__}"
    elif (selection.family, method) == ("generator", "generate"):
        wrong = _wrong_completions(answer, *arguments[1:2])
    elif (selection.family, method) == ("trainer", "logprobs"):
        wrong = _wrong_logprobs(answer, *arguments[:1])
    if wrong:
        who = title(selection)
        if method == "publish" and context.transport is not None:
            who += f" with {title(context.transport)}"  # it passes on what this returned
        raise RunFailed(f"{who}: {method}() returned {wrong}")


def _wrong_completions(answer: Any, sampling: Sampling | None = None) -> str:
    if not isinstance(answer, list | tuple):
        return f"{_kind(answer)}, not a list of Completion"
    for item in answer:
        if not isinstance(item, Completion):
            return f"a list with {_kind(item)} in it, not of Completion"
    if sampling is not None and len(answer) != sampling.n:
        return f"{len(answer)} completions where {sampling.n} were asked for"
    return ""


def _wrong_logprobs(answer: Any, sequences: Sequence[TrainSequence] | None = None) -> str:
    if not isinstance(answer, list | tuple):
        return f"{_kind(answer)}, not a list with one list for each sequence"
    if sequences is None:
        return ""
    if len(answer) != len(sequences):
        return f"the logprobs of {len(answer)} sequences where {len(sequences)} were asked for"
    for index, (logprobs, sequence) in enumerate(zip(answer, sequences, strict=True)):
        if not hasattr(logprobs, "__len__") or isinstance(logprobs, str):
            return f"{_kind(logprobs)} for sequence {index}, not a list of logprobs"
        if len(logprobs) != len(sequence.tokens):
            return (
                f"{len(logprobs)} logprobs for sequence {index}, "
                f"which has {len(sequence.tokens)} tokens"
            )
    return ""


def _kind(answer: Any) -> str:
    return "None" if answer is None else f"a {type(answer).__name__}"
