"""What methods of components return, checked where the answer arrives.

An author whose generator returns ``None`` gets one line that names the component and what was
expected, instead of a ``TypeError`` from the recipe that used it. What ``build`` returns is checked
in ``forge_core.contracts.built``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_core import (
    BuildContext,
    Completion,
    RunFailed,
    Sampling,
    Selection,
    StepResult,
    TrainSequence,
    WeightManifest,
)
from forge_core.contracts.blame import title

_ONE_ANSWER: Mapping[tuple[str, str], type] = {
    ("generator", "stats"): Mapping,
    ("trainer", "train_step"): StepResult,
    ("trainer", "publish"): WeightManifest,
}
"""Family and method -> what is returned. ``update_weights`` has its own check
(``forge_services.weight_update``)."""


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
