"""The controller's end of one rank: start its process, call it, notice its death, end it."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_core import ReplicaDied
from forge_local.processes.child import Child
from forge_local.processes.logs import tail
from forge_local.wire import BUFFERED, BUILDING, Kind, Message, encode, receive, unpack_error

_MARK = "--- "
"""Begins the line of a log with which a life begins."""


class RankProcess:
    """One rank in a process of its own.

    Args:
        label: what it is called in errors, such as ``replica 0 of trainer``.
        opening: pickled ``(ReplicaSpec, rank)``.
        environment: variables beside ours.
        log: bounded file that its output is appended to; None: our stderr.
    """

    def __init__(
        self, label: str, opening: bytes, environment: Mapping[str, str], log: Path | None
    ) -> None:
        self.label = label
        self.death: asyncio.Future[ReplicaDied] = asyncio.get_running_loop().create_future()
        """Done once the process is gone; why."""
        self._opening = opening
        self._log = log
        self._answers: dict[int, asyncio.Future[object]] = {}
        self._outbox: list[Message] = []
        self._ending: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as begun:
                when = time.strftime("%Y-%m-%d %H:%M:%S")
                begun.write(f"{_MARK}{label}: started {when}\n")
        self._child = Child(
            "forge_local.worker", log=log, env={"PYTHONUNBUFFERED": "1", **environment}
        )
        asyncio.get_running_loop().add_reader(self._child.lifeline, self._gone)

    @property
    def pid(self) -> int:
        """Of the process that leads the rank's session."""
        return self._child.pid

    async def start(self) -> None:
        """Have the component built.

        Raises:
            ReplicaDied: the process ended before that.
            Exception: whatever building raised.
        """
        reader, self._writer = await asyncio.open_connection(
            sock=self._child.channel, limit=BUFFERED
        )
        building = self.begin(Message(Kind.OPENING, BUILDING, self._opening))
        self._listening = asyncio.ensure_future(self._listen(reader))
        await building

    def begin(self, message: Message) -> asyncio.Future[object]:
        """Send a message that is answered; the future holds the answer, or raises.

        Raises (through the future):
            ReplicaDied: the process is gone, or goes before it has answered.
        """
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(seen)
        if self.death.done():
            answer.set_exception(self.death.result())
        else:
            self._answers[message.number] = answer
            self._send(message)
        return answer

    def abandon(self, number: int) -> None:
        """Cancel a call whose answer is no longer wanted."""
        answer = self._answers.pop(number, None)
        if answer is not None and not self.death.done():
            answer.cancel()
            self._send(Message(Kind.CANCEL, number))

    def kill(self, cause: str) -> None:
        """Kill the process and all it started; calls in flight raise ``ReplicaDied``."""
        self._child.kill()
        self._die(ReplicaDied(cause))

    async def close(self) -> None:
        """Kill what is left of it and give everything back. Safe to call twice."""
        self.release()
        if self._ending is not None:
            await asyncio.wait({self._ending})

    def release(self) -> None:
        """The part of ``close`` that needs no waiting, for a caller that is being cancelled."""
        asyncio.get_running_loop().remove_reader(self._child.lifeline)
        self._child.close()
        self._die(ReplicaDied(f"{self.label} was stopped"))
        if self._writer is not None:
            self._writer.close()
        else:
            self._child.channel.close()

    def _send(self, message: Message) -> None:
        """Send it together with what else comes until a turn of the event loop brings nothing new.

        So calls made together arrive together, and what a generator makes one batch of does not
        depend on time.
        """
        self._outbox.append(message)
        if len(self._outbox) == 1:
            asyncio.get_running_loop().call_soon(self._flush, 0)

    def _flush(self, before: int) -> None:
        if len(self._outbox) > before:
            asyncio.get_running_loop().call_soon(self._flush, len(self._outbox))
            return
        messages, self._outbox = self._outbox, []
        if not self.death.done():
            assert self._writer is not None
            self._writer.write(encode(messages))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hand answers to the calls that wait for them, until the process closes its end."""
        while messages := await receive(reader):
            for message in messages:
                answer = self._answers.pop(message.number, None)
                if answer is not None and not answer.done():
                    _settle(answer, message)

    def _gone(self) -> None:
        """The process has ended, which closed its end of the lifeline."""
        asyncio.get_running_loop().remove_reader(self._child.lifeline)
        if not self.death.done():
            self._ending = asyncio.ensure_future(self._autopsy())

    async def _autopsy(self) -> None:
        """Find out how it ended, after the answers it may have given before."""
        self._child.kill()  # what it started
        end = await asyncio.to_thread(self._child.end)
        if self._listening is not None:
            await asyncio.wait({self._listening}, timeout=1.0)
        self._die(
            ReplicaDied(
                f"{self.label} (process {self.pid}) {end}"
                + (f"; its log: {self._log}" if self._log is not None else ""),
                log_tail=self.log_tail(),
            )
        )

    def _die(self, death: ReplicaDied) -> None:
        if self.death.done():
            return
        self.death.set_result(death)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(death)

    def log_tail(self) -> list[str]:
        """The last lines of its log, of this life."""
        return tail(self._log, after=_MARK)


def _settle(answer: asyncio.Future[object], message: Message) -> None:
    if message.kind == Kind.ERROR:
        answer.set_exception(unpack_error(message.body))
        return
    try:
        answer.set_result(pickle.loads(message.body))
    except Exception as error:
        answer.set_exception(error)


def seen(answer: asyncio.Future[Any]) -> None:
    """Retrieve its exception, so that asyncio does not complain: one rank's error is raised for
    all, and the result of a call that was given up is not needed."""
    if not answer.cancelled():
        answer.exception()
