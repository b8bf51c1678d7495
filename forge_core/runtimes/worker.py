"""One rank of a replica in a process of its own: ``python -m forge_core.runtimes.worker LIFELINE``.

It builds the component and serves calls on its event loop, each in a task, until it is told to stop
or the controller is gone. What the component prints goes to the rank's log.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys

from forge_core.processes.frames import dumps
from forge_core.processes.supervision import divide, take_over_stdin
from forge_core.runtimes.host import ComponentHost
from forge_core.runtimes.wire import BUILDING, Kind, Message, pack_error, receive


def main() -> None:
    """Serve the controller over the socket that is our standard input."""
    channel = take_over_stdin()
    divide(int(sys.argv[1]), (channel,))
    asyncio.run(_Rank(socket.socket(fileno=channel)).serve())


class _Rank:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._host: ComponentHost
        self._answers = True
        self._writer: asyncio.StreamWriter

    async def serve(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._channel)
        opening = await receive(reader)
        if opening is None:
            return
        try:
            spec, rank = pickle.loads(opening.body)
            self._host = ComponentHost.build(spec, rank)
            self._answers = rank == 0
        except BaseException as error:
            await self._fail(BUILDING, error)
            return
        await self._send(Message(Kind.RESULT, BUILDING, dumps(os.getpid())))
        while (message := await receive(reader)) is not None:
            match message.kind:
                case Kind.CALL:
                    self._tasks[message.number] = asyncio.create_task(self._call(message))
                case Kind.CANCEL if message.number in self._tasks:
                    self._tasks[message.number].cancel()
                case Kind.STOP:
                    await self._stop(message.number)
                    return

    async def _call(self, message: Message) -> None:
        try:
            method, args, kwargs = pickle.loads(message.body)
            result = await self._host.call(method, args, kwargs)
            # Every rank makes the same call; the replica's result is rank 0's.
            body = dumps(result if self._answers else None)
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # nobody waits for the answer
            await self._fail(message.number, error)
        else:
            await self._send(Message(Kind.RESULT, message.number, body))
        finally:
            del self._tasks[message.number]

    async def _stop(self, number: int) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        try:
            await self._host.close()
        except BaseException as error:
            await self._fail(number, error)
        else:
            await self._send(Message(Kind.RESULT, number, dumps(None)))

    async def _fail(self, number: int, error: BaseException) -> None:
        await self._send(Message(Kind.ERROR, number, pack_error(error)))

    async def _send(self, message: Message) -> None:
        self._writer.write(message.encode())
        await self._writer.drain()


if __name__ == "__main__":
    main()
