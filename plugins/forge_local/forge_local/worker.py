"""One rank of a replica: ``python -m forge_local.worker``.

It builds the component and serves calls on its event loop, each in a task, until it is asked to
stop or the controller is gone. What the component prints goes to the rank's log.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys

from forge_local.component_host import ComponentHost
from forge_local.processes.frames import dumps
from forge_local.processes.supervision import become_child
from forge_local.wire import BUFFERED, BUILDING, Kind, Message, encode, pack_error, receive


def main() -> None:
    """Serve the controller, in a process that does not outlive it."""
    channel, _ = become_child()
    asyncio.run(_Rank(socket.socket(fileno=channel)).serve())
    # The component is closed; an engine's threads and exit handlers need not be waited for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Rank:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._host: ComponentHost
        self._answers = True
        self._writer: asyncio.StreamWriter

    async def serve(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._channel, limit=BUFFERED)
        opening = await receive(reader)
        if not opening:
            return
        try:
            spec, rank = pickle.loads(opening[0].body)
            self._host = ComponentHost.build(spec, rank)
            self._answers = rank == 0
        except BaseException as error:
            await self._fail(BUILDING, error)
            await receive(reader)  # to be killed: an exit would look like a cause of its own
            return
        await self._send(Message(Kind.RESULT, BUILDING, dumps(None)))
        while messages := await receive(reader):
            for message in messages:
                if message.kind == Kind.STOP:
                    await self._stop(message.number)
                    return
                self._take(message)

    def _take(self, message: Message) -> None:
        number = message.number
        if message.kind == Kind.CALL:
            task = self._tasks[number] = asyncio.create_task(self._call(message))
            task.add_done_callback(lambda _: self._tasks.pop(number))
        elif number in self._tasks:
            self._tasks[number].cancel()

    async def _call(self, message: Message) -> None:
        try:
            method, args, kwargs = pickle.loads(message.body)
            result = await self._host.call(method, args, kwargs)
            # Every rank makes the same call; the replica's result is rank 0's.
            body = dumps(result if self._answers else None)
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the answer is no longer wanted
            await self._fail(message.number, error)
        else:
            await self._send(Message(Kind.RESULT, message.number, body))

    async def _stop(self, number: int) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._host.close()
        except BaseException as error:
            await self._fail(number, error)
        else:
            await self._send(Message(Kind.RESULT, number, dumps(None)))

    async def _fail(self, number: int, error: BaseException) -> None:
        await self._send(Message(Kind.ERROR, number, pack_error(error)))

    async def _send(self, message: Message) -> None:
        self._writer.write(encode([message]))
        await self._writer.drain()


if __name__ == "__main__":
    main()
