"""The ``forge`` command: its first moments, its errors and its end.

Nothing is imported here at the top but what the interpreter has loaded anyway, so that ctrl-C and
closed streams are dealt with before the imports that take time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130

LAST_WAIT = 10.0
"""Seconds that the end of a command waits for threads."""

_end = os._exit


def main(arguments: Sequence[str] | None = None, *, app: object | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: without the program's name; default ``sys.argv[1:]``.
        app: the ``Forge`` to use instead of a fresh one that discovers plugins.
    """
    import traceback

    import click

    from forge_core.cli.commands import forge
    from forge_core.contracts.blame import described
    from forge_core.contracts.errors import ForgeError
    from forge_core.streams import broken_output, say

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        result = forge.main(arguments, prog_name="forge", standalone_mode=False, obj=app)
        sys.stdout.flush()
    except click.ClickException as error:
        say(error.show)
        return error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        say("error: interrupted")
        return INTERRUPTED
    except ForgeError as error:
        if debug:
            say(traceback.format_exc())
        for line in str(error).splitlines() or [type(error).__name__]:
            say(f"error: {line}")
        for line in error.log_tail:
            say(f"  | {line}")
        return error.exit_code
    except Exception as error:  # a bug, ours or a plugin's: one line, and the way to all of it
        if debug:
            say(traceback.format_exc())
        if (reason := broken_output(error)) is not None:
            if not isinstance(error, BrokenPipeError):  # the reader has had enough
                say(f"error: standard output: {reason}")
            return 1
        message = str(error).partition("\n")[0]
        say(f"error: {type(error).__name__}: {message} (--debug shows where)")
        return 1
    except BaseException as error:  # sys.exit() in a plugin is no success, whatever its argument
        if debug:
            say(traceback.format_exc())
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        # click itself ends so where standard output is a closed pipe: the reader has had enough.
        if not str(frame.f_globals.get("__name__")).startswith("click."):
            say(f"error: {described(error)} (--debug shows where)")
        return 1
    return result if isinstance(result, int) else 0


def entry_point() -> NoReturn:
    """What the installed ``forge`` script calls: ``main``, then the end of the process.

    The interpreter's own end would let engines' native threads run into it while it is taken down,
    which ends some runs with an abort (exit code 134) after they have succeeded. So everything that
    may run at exit does, and then the process ends with the code it has earned.
    """
    signal.signal(signal.SIGINT, _leave)
    import atexit

    from forge_core.streams import prepare, say

    prepare()
    os._exit = _exit_of_a_component
    code = main()
    _join_threads()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        say(stream.flush)
    _end(code)


def _join_threads() -> None:
    """Wait for what is no daemon, but not for ever: a component may have left one that hangs."""
    import threading

    from forge_core.streams import say

    if threading.active_count() == 1:
        return
    before = signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, LAST_WAIT)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except TimeoutError:
        say(f"warning: threads that have not ended within {LAST_WAIT:g} s are abandoned")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_late(number: int, frame: object) -> NoReturn:
    raise TimeoutError


def _exit_of_a_component(status: int, pid: int = os.getpid()) -> NoReturn:
    """``os._exit`` while a command runs: in the main thread it fails like ``sys.exit``, elsewhere
    it ends the process, but never with 0. Processes that were forked have the real one."""
    import threading

    if os.getpid() != pid:
        _end(status)
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(f"os._exit({status})")
    _end(status or 1)


def _leave(number: int, frame: object) -> NoReturn:
    """Ctrl-C while the command is still being imported: there is nothing to clean up.

    An exception would end in a traceback, or be swallowed by what is being imported.
    """
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        _end(INTERRUPTED)


_leave.marks_interrupts = True  # type: ignore[attr-defined]  # see contracts/blame.py


def ready() -> None:
    """From here on, ctrl-C raises ``KeyboardInterrupt`` where the command is."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
