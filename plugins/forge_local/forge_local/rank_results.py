"""Combine the ranks' results of one call: rank 0's, or the error of the first that raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from forge_core import ForgeError, ReplicaDied

GRACE = 5.0
"""Seconds that the other ranks get to finish a call after one has raised; they may be waiting for
it in a collective."""


async def combined(
    answers: Sequence[asyncio.Future[Any]],
    label: str,
    doing: str,
    lost: Callable[[ReplicaDied], None],
) -> Any:
    """The answer of rank 0 once every rank has given one.

    Args:
        answers: of each rank, in order.
        label: of the replica, such as ``replica 0 of trainer``.
        doing: the method's name.
        lost: called when the replica cannot go on: a rank died, or the others do not come back
            within ``GRACE`` after one has raised.

    Raises:
        ReplicaDied: a rank died.
        Exception: what the first rank raised that did.
    """
    order: list[asyncio.Future[Any]] = []
    for answer in answers:
        answer.add_done_callback(order.append)
    await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
    errors = _errors(answers)
    if not errors:
        return answers[0].result()
    if len(errors) < len(answers):
        await asyncio.wait(answers, timeout=GRACE)
        errors = _errors(answers)
    # An answer may be there before its callback has run: it came after all that are in order.
    came = {answer: place for place, answer in enumerate(order)}
    first = min(errors, key=lambda rank: came.get(answers[rank], len(answers)))
    error = errors[first]
    words = _words(error)
    for died in errors.values():
        if isinstance(died, ReplicaDied):
            # What the others say is that they lost it.
            lost(died)
            raise died
    alike = len(errors) == len(answers) and len({_words(e) for e in errors.values()}) == 1
    if not alike:
        _name_rank(error, f"rank {first} of {label}")
    if any(not answer.done() for answer in answers):
        lost(
            ReplicaDied(
                f"rank {first} of {label} failed in {doing} and the others waited for it: {words}"
            )
        )
    raise error


def _errors(answers: Sequence[asyncio.Future[Any]]) -> dict[int, Exception]:
    """Rank -> what it raised, of those that did."""
    return {
        rank: error
        for rank, answer in enumerate(answers)
        if answer.done() and isinstance(error := answer.exception(), Exception)
    }


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _name_rank(error: Exception, rank: str) -> None:
    """Say which rank it was, where the message of the exception can be changed."""
    if (
        isinstance(error, ForgeError | RuntimeError | ValueError | TypeError)
        and len(error.args) == 1
        and isinstance(error.args[0], str)
    ):
        error.args = (f"{rank}: {error.args[0]}",)
    else:
        error.add_note(f"raised on {rank}")
