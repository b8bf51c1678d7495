"""Whose code failed: exceptions of components are raised as errors that name them.

An author gets one line that names the component, the plugin and what it did, instead of an
exception from somewhere in the kernel.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forge_core.contracts.errors import Escaped, ForgeError, Interrupted, PluginError

if TYPE_CHECKING:
    from forge_core.contracts.selection import Selection


FILE_MODULE = "forge_file_"
"""How the modules of files that configs name begin."""


def title(selection: Selection[Any]) -> str:
    """The component for messages, such as ``recipe 'rft' (plugin acme-rft)``."""
    from_file = selection.plugin.endswith(".py")
    plugin = f" ({'' if from_file else 'plugin '}{selection.plugin})" if selection.plugin else ""
    return f"{selection.family} {selection.name!r}{plugin}"


class _Contained:
    """A block of a component's code. No generator: it surrounds several calls of each episode."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, StopIteration | StopAsyncIteration):
            # Leaving a coroutine or a generator, Python would make it a RuntimeError without notes.
            raise Escaped(described(error)) from error
        if not isinstance(error, Exception) and is_foreign(error):
            raise Escaped(described(error)) from error


def contained() -> AbstractContextManager[None]:
    """Keep the code of a component from ending the process that calls it.

    ``SystemExit``, a ``CancelledError`` that was not requested, a ``KeyboardInterrupt`` that no key
    caused and other exceptions that are no ``Exception`` would pass every handler above, and some
    of them the event loop too. They are raised as ``Escaped``; cancellation and ctrl-C pass.

    Raises:
        Escaped: the component raised one of them.
    """
    return _CONTAINED


_CONTAINED = _Contained()


def is_foreign(error: BaseException) -> bool:
    """Whether a component raised it: it is no ctrl-C and no cancellation that was asked for."""
    if isinstance(error, Interrupted | GeneratorExit):
        return False
    if isinstance(error, KeyboardInterrupt):
        # In a background job of a script, ctrl-C is ignored.
        handler = signal.getsignal(signal.SIGINT)
        return marks_interrupts(handler) or handler is signal.SIG_IGN
    import asyncio  # slow to import, and of no use to most commands

    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop, so nothing to cancel
            return True
        return task is not None and not task.cancelling()
    return True


def marks_interrupts(handler: object) -> bool:
    """Whether ctrl-C raises ``Interrupted`` or ends the process while a signal handler is
    installed, so that a ``KeyboardInterrupt`` comes from a component. Such a handler says so:
    ``handler.marks_interrupts = True``."""
    return getattr(handler, "marks_interrupts", False) is True


@contextmanager
def blaming(
    selection: Selection[Any], doing: str, kind: type[ForgeError] = PluginError
) -> Iterator[None]:
    """Exceptions that are no ``ForgeError`` are raised as one that names this component.

    Args:
        selection: the component whose code runs in the block.
        doing: what it does, such as ``plan``.
        kind: what is raised: ``PluginError`` before a run starts, ``RunFailed`` in it.

    Raises:
        ForgeError: of that kind; names the component, its plugin, and the exception.
    """
    try:
        with contained():
            yield
    except ForgeError:
        raise
    except Exception as error:
        raise kind(f"{title(selection)}: {doing} failed: {described(error)}") from error


@contextmanager
def blaming_plugin(plugin: str, hook: str) -> Iterator[None]:
    """The same for a plugin's hook that is called before a run starts."""
    try:
        with contained():
            yield
    except ForgeError:
        raise
    except Exception as error:
        raise PluginError(f"plugin {plugin}: {hook} failed: {described(error)}") from error


def described(error: BaseException) -> str:
    """Type and message of an exception, on one line."""
    message = " ".join(str(error).split())
    if isinstance(error, Escaped):
        return message
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text + place_in_file(error)


def place_in_file(error: BaseException) -> str:
    """Where in a file that a config names (``use: my_reward.py:brevity``) an exception was raised,
    such as `` (my_reward.py:12, in brevity)``; empty where it was not."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__")).startswith(FILE_MODULE):
            file = frame.f_code.co_filename.rpartition("/")[2]
            place = f" ({file}:{trace.tb_lineno}, in {frame.f_code.co_name})"
        trace = trace.tb_next
    return place


def with_notes(error: BaseException) -> str:
    """The same, and what was noted on its way: in which call of which component it was raised."""
    notes = "; ".join(note for note in getattr(error, "__notes__", ()) if "\n" not in note)
    return described(error) + (f" ({notes})" if notes else "")
