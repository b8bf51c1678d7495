"""The parent's end of a child process: start it, kill it with all it started, say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_local.processes.descendants import kill_descendants
from forge_local.processes.supervision import TOO_MANY_PROCESSES

# -P: the working directory is no place to import from unless it is one here.
_OPTIONS = ("-P", "-X", "faulthandler")


class Child:
    """A Python module run in a session of its own, that ends when this process does.

    Its ``main`` calls ``forge_local.processes.supervision.become_child`` first of all.

    Args:
        module: run as ``python -m module``.
        arguments: given to the child, as ``become_child`` returns them.
        log: bounded file (``forge_local.processes.logs``) that what the child and its programs
            print is appended to; None: our stderr.
        scratch: folder for temporary files that is removed with the child; None: the system's.
        processes: most processes that there may be below the child; None: no limit.
        env: variables beside the inherited ones.
        inherited: variables in place of those of this process.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        log: Path | None = None,
        scratch: Path | None = None,
        processes: int | None = None,
        env: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        self.lifeline, line = socket.socketpair()
        """Readable (at its end) once the child is gone; the child sees the same of us."""
        self.channel, theirs = socket.socketpair()
        """To talk with the child, which has the other end. Who uses it closes it."""
        self._closed = False
        limits = ["" if limit is None else str(limit) for limit in (log, scratch, processes)]
        with contextlib.ExitStack() as stack:
            stack.enter_context(line)
            stack.enter_context(theirs)
            output = 2 if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, *_OPTIONS, "-m", module, str(line.fileno()), *limits, *arguments],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                pass_fds=(line.fileno(),),
                env={
                    **(os.environ if inherited is None else inherited),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    **({} if scratch is None else {"TMPDIR": str(scratch)}),
                    **(env or {}),
                },
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the child, and of the session that it leads."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the child and all it has started. Safe to call twice."""
        if not self._closed:
            # First what the child started, wherever that has moved to: as long as the outer process
            # lives, all of it is found below it. Its id may be another's once it was waited for.
            if self._process.returncode is None:
                kill_descendants(self._process.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and wait until it is gone. Safe to call twice."""
        self.kill()
        if not self._closed:
            self._closed = True
            self._process.wait()
            self.lifeline.close()

    def end(self, limit: float = 5.0) -> str:
        """How it ended, such as ``was killed by SIGKILL``; ``closed its channel`` if it is still
        there after ``limit`` seconds."""
        try:
            code = self._process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        if code == TOO_MANY_PROCESSES:
            return "was killed because it had started too many processes"
        if code < 0 or code > 128:
            number = -code if code < 0 else code - 128
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(number).name}"
        return f"ended with exit code {code}"
