"""How a rank's answer travels: a pickled value, or the exception itself with its traceback."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from forge_core import RunFailed
from forge_core.processes.frames import dumps


class RemoteTraceback(Exception):
    """Where an exception was raised in a rank's process; the ``__cause__`` of that exception."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def success(value: object) -> bytes:
    return dumps((value, None, None))


def failure(error: BaseException) -> bytes:
    """An exception as it travels; one that cannot be pickled becomes a ``RunFailed``."""
    text = "".join(traceback.format_exception(error))
    try:
        message = dumps((None, error, text))
        pickle.loads(message)
    except Exception:
        substitute = RunFailed(f"{type(error).__name__}: {error}")
        return dumps((None, substitute, text))
    return message


def open_answer(message: bytes) -> Any:
    """The value, or the exception raised here."""
    value, error, text = pickle.loads(message)
    if error is not None:
        error.__cause__ = RemoteTraceback(text)
        raise error
    return value
