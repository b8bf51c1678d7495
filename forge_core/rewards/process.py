"""The pool's end of a reward process: start it, hand it work, time every sample, kill it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import time
from collections.abc import Sequence
from pathlib import Path

from forge_core.errors import ForgeError
from forge_core.processes.child import Child
from forge_core.processes.frames import LENGTH, frame
from forge_core.rewards.frames import RECORD

Result = float | str
"""A sample's reward, or why there is none."""

START_LIMIT = 120.0
"""Seconds a process may take to import and build its rewards, and to take a batch over."""


class ProcessLost(Exception):
    """The process died, or passed a limit; the message is the cause."""


class DeadlinePassed(ProcessLost):
    """It passed a limit."""


class RewardProcess:
    """One reward process. Its blocking methods are called in threads.

    Args:
        opening: pickled parts and context, for ``forge_core.rewards.worker``.
        log: file that what rewards print is appended to; None: our stderr.
    """

    def __init__(self, opening: bytes, log: Path | None) -> None:
        self._opening = opening
        self._buffer = bytearray()
        commands, self._commands = os.pipe()
        self._results, results = os.pipe()
        self._closed = False
        with contextlib.ExitStack() as stack:
            for theirs in (commands, results):
                stack.callback(os.close, theirs)
            self._child = Child(
                "forge_core.rewards.worker",
                stdin=commands,
                stdout=results,
                stderr=None if log is None else stack.enter_context(log.open("ab")),
            )
        os.set_blocking(self._commands, False)

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self) -> None:
        """Block until every reward is built.

        Raises:
            ForgeError: one could not be built.
            DeadlinePassed: the process did not come up in time.
            ProcessLost: it died.
        """
        limit = time.monotonic() + START_LIMIT
        late = f"not ready after {START_LIMIT:g} s"
        self._write(frame(self._opening), limit, late)
        (size,) = LENGTH.unpack(self._read(LENGTH.size, limit, late))
        error = pickle.loads(self._read(size, limit, late))
        if error is not None:
            assert isinstance(error, ForgeError)
            raise error

    def score(self, batch: bytes, deadlines: Sequence[float], results: list[Result]) -> None:
        """Block until every sample of a batch is judged; append to ``results`` in their order.

        Args:
            batch: a pickled batch, as the worker reads it.
            deadlines: seconds each sample may take.
            results: what is in it when ``ProcessLost`` is raised was judged before; the sample
                after it was being judged.

        Raises:
            DeadlinePassed: a sample passed its deadline.
            ProcessLost: the process died.
        """
        limit = time.monotonic() + START_LIMIT
        late = f"a batch was not taken over within {START_LIMIT:g} s"
        self._write(frame(batch), limit, late)
        self._read(RECORD.size, limit, late)
        for deadline in deadlines:
            limit = time.monotonic() + deadline
            late = f"deadline of {deadline:g} s passed"
            value, size = RECORD.unpack(self._read(RECORD.size, limit, late))
            results.append(self._read(size, limit, late).decode() if size else value)

    def kill(self) -> None:
        """Kill the process and all it has started; a thread blocked on it gets ``ProcessLost``."""
        self._child.kill()

    def close(self) -> None:
        """Kill it and give its pipes back. Not while a thread uses it. Safe to call twice."""
        self._child.close()
        if not self._closed:
            self._closed = True
            os.close(self._commands)
            os.close(self._results)

    def _write(self, data: bytes, limit: float, late: str) -> None:
        view = memoryview(data)
        while view:
            self._poll(self._commands, select.POLLOUT, limit, late)
            try:
                view = view[os.write(self._commands, view) :]
            except BrokenPipeError:
                raise ProcessLost(self._end()) from None

    def _read(self, size: int, limit: float, late: str) -> bytes:
        while len(self._buffer) < size:
            self._poll(self._results, select.POLLIN, limit, late)
            part = os.read(self._results, 1 << 16)
            if not part:
                raise ProcessLost(self._end())
            self._buffer += part
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _poll(self, descriptor: int, event: int, limit: float, late: str) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, limit - time.monotonic()) * 1000):
            raise DeadlinePassed(late)

    def _end(self) -> str:
        """How the process ended, in words."""
        return f"the process {self._child.end() or 'closed its channel'}"


def log_tail(log: Path | None, lines: int = 20) -> list[str]:
    """The last lines that rewards printed."""
    if log is None or not log.is_file():
        return []
    return log.read_text(errors="replace").splitlines()[-lines:]
