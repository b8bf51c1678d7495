"""The check of the tasks' answers by reward ``math``. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forge_core import BuildContext, DataError, Reward, RewardSample, Task
from forge_grpo.checks import check_answers
from forge_grpo.rewards import final_answer
from forge_grpo.rewards.trial import try_reward
from forge_grpo.settings import MathSettings
from forge_rewards.process import Result

DEADLINE = 10.0
"""Seconds for one answer; the first waits for Math-Verify's grammar to be built."""


def check_math(settings: MathSettings, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Refuse tasks whose answer would earn nothing as a completion.

    Plain numbers and words are compared at once. For others ``math`` itself judges each different
    answer, in a process that can be killed: a formula takes 3 to 20 ms, and some never end.

    Raises:
        DataError: a task has no answer, or one that cannot be read or does not equal itself.
    """
    check_answers(settings, context, tasks)
    different: dict[str, Task] = {}
    for task in tasks:
        if not _is_plain(task.answer or ""):
            different.setdefault(task.answer or "", task)
    doubtful, causes = list(different.values()), list[Result]()
    for form in ("{}", "${}$"):  # as it stands, and as a formula
        if doubtful:
            own = [_sample(task, form) for task in doubtful]
            results = try_reward(_Tried(settings), context, own, deadline=DEADLINE)
            pairs = zip(doubtful, results, strict=True)
            failing = [(task, result) for task, result in pairs if result != 1.0]
            doubtful, causes = [task for task, _ in failing], [result for _, result in failing]
    if doubtful:
        others = len(doubtful) - 1
        more = f" (and {others} other answers)" if others else ""
        raise DataError(_described(doubtful[0], causes[0]) + more)


@dataclass(frozen=True)
class _Tried:
    """``math``, which is imported where it judges."""

    settings: MathSettings

    def build(self, context: BuildContext) -> Reward:
        from forge_grpo.rewards.math import Math

        return Math(self.settings)


def _sample(task: Task, form: str) -> RewardSample:
    """The task's answer as a completion of it."""
    return RewardSample(task, "", form.format(final_answer.last_part(task.answer or "")))


def _described(task: Task, cause: Result) -> str:
    if isinstance(cause, str) and cause.startswith("DataError: "):
        return cause.removeprefix("DataError: ")
    answer = task.answer or ""
    shown = answer if len(answer) <= 60 else f"{answer[:57]}..."
    why = f": {cause}" if isinstance(cause, str) else ""
    return f"task {task.id!r}: answer {shown!r} earns nothing as its own completion{why}"


def _is_plain(answer: str) -> bool:
    """Whether it equals itself for certain: a number, or words that are no formula."""
    answer = final_answer.tidy(final_answer.last_part(answer))
    return final_answer.number(answer) is not None or final_answer.is_words(answer)
