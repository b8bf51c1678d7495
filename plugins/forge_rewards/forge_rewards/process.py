"""The pool's end of a reward process: start it, hand it work, time every sample, kill it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from forge_core import ForgeError, RewardResult
from forge_core.contracts.built import Takes
from forge_local.processes.child import Child
from forge_local.processes.frames import dumps, frame
from forge_local.processes.scratch import Scratch
from forge_rewards.confinement import Confinement
from forge_rewards.frames import RECORD, SECRET_SIZE, Kind

Result = float | RewardResult | str
"""A sample's reward, or why there is none."""

START_LIMIT = 120.0
"""Seconds a process may take to import and build its rewards, and to take a batch over."""

DEFAULT = Confinement()

GRACE = 1.0
"""Seconds that the event loop of a reward process has to cancel an ``async`` call."""

_FOREIGN = "something else has written to the channel of the reward process"

_CHUNK = 1 << 16

_TOGETHER = 2e-4
"""Seconds in which records come together before they are read: to be woken for each costs more
than most rewards."""


class ProcessLost(Exception):
    """The process died, or passed a limit; the message is the cause."""


class DeadlinePassed(ProcessLost):
    """It passed a limit."""


@dataclass(frozen=True, slots=True)
class Form:
    """What one call of a reward judges, and whether it is ``async``."""

    takes: Takes
    is_async: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the calls of one reward.

    Args:
        deadline: seconds of a call.
        concurrency: calls under way at once, of an ``async`` reward.
        samples: that a call judges.
        is_async: whether others are made at the same time.
    """

    deadline: float
    concurrency: int = 1
    samples: int = 1
    is_async: bool = False

    @property
    def late(self) -> str:
        return f"deadline of {self.deadline:g} s passed"


class _Record(NamedTuple):
    kind: int
    call: int
    value: float
    body: bytes


@dataclass(slots=True)
class Attempt:
    """What a process has made of a batch so far.

    Args:
        results: by call, one for each of its samples.
        late: calls that passed their deadline and were cancelled.
        under_way: calls that have begun and are not done.
    """

    results: dict[int, list[Result]] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)

    def take(self, record: _Record, call: Limits) -> None:
        """Keep what a record says of a call."""
        if record.kind == Kind.VALUE:
            self.results[record.call] = [record.value]
        elif record.kind == Kind.RESULTS:
            self.results[record.call] = [
                each if isinstance(each, str) else RewardResult(*each) if each[1] else each[0]
                for each in json.loads(record.body)
            ]
        else:
            self.results[record.call] = [record.body.decode(errors="replace")] * call.samples
            if record.kind == Kind.LATE:
                self.late.append(record.call)


class RewardProcess:
    """One reward process. Its blocking methods are called in threads.

    Args:
        opening: pickled parts, context and limits, for ``forge_rewards.child``.
        log: bounded file that what rewards print is appended to; None: our stderr.
        confinement: its environment and limits.
    """

    def __init__(
        self, opening: bytes, log: Path | None, confinement: Confinement = DEFAULT
    ) -> None:
        self._opening = dumps((opening, confinement))
        self._secret = secrets.token_bytes(SECRET_SIZE)
        self._number = 0
        self.forms: dict[str, Form] = {}
        """Of each part, once the process is ready."""
        self._buffer = bytearray()
        self._closed = False
        self._scratch = Scratch("forge-rewards-")
        self._child = Child(
            "forge_rewards.child",
            log=log,
            scratch=self._scratch.path,
            processes=confinement.processes,
            inherited=confinement.environment(os.environ),
        )
        self._channel = self._child.channel
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
        record = self._receive(limit, late)
        if record.kind == Kind.REFUSED:
            error = pickle.loads(record.body)
            assert isinstance(error, ForgeError)
            raise error
        self.forms = {
            part: Form(takes, is_async)
            for part, (takes, is_async) in json.loads(record.body).items()
        }

    def score(self, batch: bytes, calls: Sequence[Limits], attempt: Attempt) -> None:
        """Block until all calls of a batch are made.

        Args:
            batch: a pickled batch, as the process reads it.
            calls: what each call may take. Those of plain functions are made first, in order, each
                with the time since the one before; those of ``async`` ones then, at the same time.
            attempt: is filled as results come.

        Raises:
            DeadlinePassed: a call passed its deadline.
            ProcessLost: the process died, or something else wrote to its channel.
        """
        limit = time.monotonic() + START_LIMIT
        late = f"a batch was not taken over within {START_LIMIT:g} s"
        self._write(frame(batch), limit, late)
        self._receive(limit, late)
        last = -1
        for number, call in enumerate(calls):
            if not call.is_async:
                attempt.under_way = [number]
                limit = time.monotonic() + call.deadline
                together = _TOGETHER if number + 1 < len(calls) else 0.0
                record = self._receive(limit, call.late, together)
                attempt.take(record, call)
                last = number
        attempt.under_way = []
        limits: dict[int, float] = {}
        left = sum(call.is_async for call in calls)
        while left:
            limit, text = time.monotonic() + START_LIMIT, "the event loop made no call"
            if limits:
                first = min(limits, key=limits.__getitem__)
                limit, text = limits[first], calls[first].late
            record = self._receive(limit, text)
            if record.kind == Kind.STARTED:
                limits[record.call] = time.monotonic() + calls[record.call].deadline + GRACE
            else:
                del limits[record.call]
                attempt.take(record, calls[record.call])
                last = record.call
                left -= 1
            attempt.under_way = list(limits)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            self._buffer += self._channel.recv(_CHUNK)
        if self._buffer:
            del attempt.results[last]
            attempt.under_way = [last]
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

    def _receive(self, limit: float, late: str, together: float = 0.0) -> _Record:
        """The next record; where there is none yet, what else comes in so many seconds after it is
        read with it."""
        header = self._read(RECORD.size, limit, late, together)
        secret, number, kind, call, value, size = RECORD.unpack(header)
        if (secret, number) != (self._secret, self._number):
            raise ProcessLost(_FOREIGN)
        self._number += 1
        body = self._read(size, limit, late) if size else b""
        return _Record(kind, call, value, body)

    def _read(self, size: int, limit: float, late: str, together: float = 0.0) -> bytes:
        while len(self._buffer) < size:
            self._poll(select.POLLIN, limit, late)
            if together:
                time.sleep(together)
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
        return f"the process {self._child.end()}"
