"""The pool's end of a reward process: start it, hand it work, time every sample, kill it."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from forge_core.contracts.errors import ForgeError
from forge_core.processes.child import Child
from forge_core.processes.frames import dumps, frame
from forge_core.processes.scratch import Scratch
from forge_core.rewards.confinement import Confinement
from forge_core.rewards.frames import RECORD, SECRET_SIZE

Result = float | str
"""A sample's reward, or why there is none."""

START_LIMIT = 120.0
"""Seconds a process may take to import and build its rewards, and to take a batch over."""

DEFAULT = Confinement()

_FOREIGN = "something else has written to the channel of the reward process"

_CHUNK = 1 << 16


class ProcessLost(Exception):
    """The process died, or passed a limit; the message is the cause."""


class DeadlinePassed(ProcessLost):
    """It passed a limit."""


class RewardProcess:
    """One reward process. Its blocking methods are called in threads.

    Args:
        opening: pickled parts and context, for ``forge_core.rewards.worker``.
        log: bounded file that what rewards print is appended to; None: our stderr.
        confinement: its environment and limits.
    """

    def __init__(
        self, opening: bytes, log: Path | None, confinement: Confinement = DEFAULT
    ) -> None:
        self._opening = dumps((opening, confinement))
        self._secret = secrets.token_bytes(SECRET_SIZE)
        self._number = 0
        self._buffer = bytearray()
        self._closed = False
        self._scratch = Scratch("forge-rewards-")
        self._channel, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            output = None if log is None else stack.enter_context(log.open("ab"))
            self._child = Child(
                "forge_core.rewards.worker",
                [str(log or ""), str(self._scratch.path), str(confinement.processes)],
                stdin=theirs.fileno(),
                stdout=2 if output is None else output,
                stderr=output,
                inherited=confinement.environment(os.environ),
                env={"TMPDIR": str(self._scratch.path)},
            )
        self._channel.setblocking(False)

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
        self._scratch.remove_abandoned()
        limit = time.monotonic() + START_LIMIT
        late = f"not ready after {START_LIMIT:g} s"
        self._write(frame(self._secret) + frame(self._opening), limit, late)
        _, body = self._receive(limit, late)
        if body:
            error = pickle.loads(body)
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
            ProcessLost: the process died, or something else wrote to its channel.
        """
        limit = time.monotonic() + START_LIMIT
        late = f"a batch was not taken over within {START_LIMIT:g} s"
        self._write(frame(batch), limit, late)
        self._receive(limit, late)
        for deadline in deadlines:
            value, message = self._receive(
                time.monotonic() + deadline, f"deadline of {deadline:g} s passed"
            )
            results.append(message.decode(errors="replace") if message else value)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            self._buffer += self._channel.recv(_CHUNK)
        if self._buffer:
            results.pop()
            raise ProcessLost(_FOREIGN)

    def kill(self) -> None:
        """Kill the process and all it has started; a thread blocked on it gets ``ProcessLost``."""
        self._child.kill()

    def close(self) -> None:
        """Kill it and give its channel back. Not while a thread uses it. Safe to call twice."""
        self._child.close()
        if not self._closed:
            self._closed = True
            self._channel.close()
            self._scratch.release()

    def remove_scratch(self) -> None:
        """Remove the temporary files that it and what it started have left. Once it is closed."""
        self._scratch.remove()

    def _write(self, data: bytes, limit: float, late: str) -> None:
        view = memoryview(data)
        while view:
            self._poll(select.POLLOUT, limit, late)
            try:
                view = view[self._channel.send(view) :]
            except ConnectionError:
                raise ProcessLost(self._end()) from None

    def _receive(self, limit: float, late: str) -> tuple[float, bytes]:
        """The next record's value and what follows it."""
        header = self._read(RECORD.size, limit, late)
        secret, number, value, size = RECORD.unpack(header)
        if (secret, number) != (self._secret, self._number):
            raise ProcessLost(_FOREIGN)
        self._number += 1
        return value, self._read(size, limit, late)

    def _read(self, size: int, limit: float, late: str) -> bytes:
        while len(self._buffer) < size:
            self._poll(select.POLLIN, limit, late)
            try:
                part = self._channel.recv(_CHUNK)
            except ConnectionResetError:
                part = b""
            if not part:
                raise ProcessLost(self._end())
            self._buffer += part
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _poll(self, event: int, limit: float, late: str) -> None:
        poll = select.poll()
        poll.register(self._channel, event)
        if not poll.poll(max(0.0, limit - time.monotonic()) * 1000):
            raise DeadlinePassed(late)

    def _end(self) -> str:
        """How the process ended, in words."""
        return f"the process {self._child.end() or 'closed its channel'}"
