"""Reward ``math``: 1 if the completion's final answer equals the reference as mathematics.

Parsing and comparing formulas are Math-Verify's. A number that merely occurs in the text earns
nothing.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from forge_core import DataError, RewardSample, Task
from forge_grpo.rewards import final_answer
from forge_grpo.settings import MathSettings

DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
"""LaTeX that says itself where it begins."""

SHORT = 64
"""Most characters of a line without delimiters that is read as one expression."""

NAMED = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|ln|log|exp|pi|sqrt(?=\d))(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Reference:
    """A task's answer as it was read.

    Args:
        text: as it stands.
        number: its value if it is a plain number.
        words: itself, if it is compared as text.
        formulas: what Math-Verify made of it; empty for words alone.
    """

    text: str
    number: Fraction | None
    words: str | None
    formulas: tuple[Any, ...]


class Math:
    """Understands LaTeX (boxed, or between its delimiters), plain numbers and expressions, words.

    What counts in a completion is the text in its answer tag, else the last boxed expression,
    else what follows "answer", else the last line or expression. Reasoning does not count, and an
    answer of words (``Paris``, ``A``, ``12:30``) is compared as text. A percent sign may be left
    out, and so may the name in ``x = 5``.
    """

    def __init__(self, settings: MathSettings) -> None:
        # It warns on every call that its timeouts are off, which they are on purpose (see below).
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self.precision = settings.precision
        self.thinking_tag = settings.thinking_tag
        self.answer_tag = settings.answer_tag

    def __call__(self, sample: RewardSample) -> float:
        reference = _task_reference(sample.task)
        text = final_answer.outside_reasoning(sample, self.thinking_tag)
        cut_off = sample.finish_reason == "length"
        inside = final_answer.tagged(text, self.answer_tag, cut_off=cut_off)
        return float(self._equal(reference, text if inside is None else inside))

    def _equal(self, reference: Reference, text: str) -> bool:
        text = final_answer.tidy(text)
        if text.split() == reference.text.split():
            return True
        if reference.words is not None and final_answer.same_words(text, reference.words):
            return True
        if reference.number is not None:
            found = final_answer.number(final_answer.stated(text), decimal_comma=True)
            if found is not None and not DELIMITED.search(text):
                return self._near(found, reference.number)
        if not reference.formulas:
            return False
        expressions = _final_expressions(text)
        if verify(
            list(reference.formulas),
            expressions,
            float_rounding=self.precision,
            timeout_seconds=None,
        ):
            return True
        # Math-Verify rounds only where one side is written as a decimal, and compares rounded
        # numbers exactly; an integer and 41.9999999 would differ.
        return reference.number is not None and any(
            self._near(value, reference.number)
            for value in map(_value, expressions)
            if value is not None
        )

    def _near(self, found: Fraction, wanted: Fraction) -> bool:
        return abs(found - wanted) <= Fraction(1, 2 * 10**self.precision)


def _task_reference(task: Task) -> Reference:
    if task.answer is None:
        raise DataError(f"task {task.id!r} has no answer to compare with")
    reference = _reference(task.answer)
    if reference is None:
        raise DataError(f"task {task.id!r}: answer {task.answer!r} is no mathematics")
    return reference


@lru_cache(maxsize=4096)
def _reference(answer: str) -> Reference | None:
    """The reference answer, which is read whole: ``3x`` is no 3, and ``10:30`` no 10."""
    answer = final_answer.tidy(final_answer.last_part(answer))
    number = final_answer.number(answer)
    if number is not None:
        return Reference(answer, number, None, tuple(_whole(final_answer.decimal(number))))
    if final_answer.is_words(answer) or final_answer.is_data(answer):
        return Reference(answer, None, answer, ())
    if final_answer.is_worded(answer) or final_answer.is_worded(final_answer.words_of(answer)):
        # It may be a symbol or a quantity as well, and counts as either.
        return Reference(answer, None, answer, tuple(_whole(answer)))
    formulas = _whole(answer)
    if formulas and verify(formulas, formulas, timeout_seconds=None):
        return Reference(answer, None, None, tuple(formulas))
    # What cannot be parsed, or equals nothing, is compared as text, if there is any.
    has_text = any(sign.isalnum() or not sign.isascii() for sign in final_answer.words_of(answer))
    return Reference(answer, None, answer, ()) if has_text else None


def _final_expressions(text: str) -> list[Any]:
    """What a completion gives as its answer. A short line without words is one expression, read
    as a reference is; in anything else Math-Verify looks for it."""
    stated = "" if DELIMITED.search(text) else final_answer.stated(text)
    one = not (final_answer.is_data(stated) or final_answer.has_words(stated))
    if one and 0 < len(stated) <= SHORT:
        whole = _whole(stated)
        if whole:
            return whole
    return _parse(text)


def _whole(text: str) -> list[Any]:
    """Text as one expression, from its first character to its last."""
    if DELIMITED.search(text):
        return _parse(text, [LatexExtractionConfig()])
    if "\\" not in text:
        text = final_answer.MIXED.sub(r"\1 \\frac{\2}{\3}", text.replace("**", "^"))
        text = NAMED.sub(r"\\\1 ", text)
    return _parse(f"${text}$", [LatexExtractionConfig()])


def _value(expression: Any) -> Fraction | None:
    """Its value if it is one number, also behind a name as in ``x = 5``."""
    if getattr(expression, "rel_op", None) == "==" and expression.lhs.is_Symbol:
        expression = expression.rhs
    if not getattr(expression, "is_Number", False) or not expression.is_finite:
        return None
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))
    return Fraction(str(expression))


def _parse(text: str, *targets: Any) -> list[Any]:
    # Rewards run in a process of their own under the kernel's deadline, which also ends what
    # Math-Verify's alarm cannot interrupt; its own timeouts are therefore off. Without its
    # fallback, what cannot be parsed is not compared as text either.
    parsed: list[Any] = parse(text, *targets, fallback_mode="no_fallback", parsing_timeout=None)
    return parsed
