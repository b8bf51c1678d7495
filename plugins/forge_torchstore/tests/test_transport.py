"""Transport ``torchstore``, on the real TorchStore."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import cloudpickle
import pytest

from forge_core import BuildContext, Selection
from forge_core.protocols import Transport
from forge_core.testing.conformance.transport import Target, TransportConformance
from forge_torchstore.settings import TORCHSTORE, Storage, TorchStoreSettings

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def selected(storage: Storage = "process") -> Selection[Transport]:
    settings = TorchStoreSettings(storage=storage)
    return Selection(family="transport", component=TORCHSTORE, settings=settings)


async def answer(
    address: str, target: Target, selection: Selection[Transport], context: BuildContext
) -> None:
    with Client(address, family="AF_UNIX") as pipe:
        await target(selection, context, pipe)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_process_left")
class TestTorchStore(TransportConformance):
    crosses_processes = True

    @pytest.fixture(autouse=True)
    def _workers(self, workers: Any) -> None:
        self._start_workers = workers

    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        return selected()

    @asynccontextmanager
    async def processes(
        self,
        count: int,
        target: Target,
        selection: Selection[Transport],
        context: BuildContext,
    ) -> AsyncIterator[Sequence[Connection]]:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            listener = stack.enter_context(closing(Listener(f"{folder}/pipe", family="AF_UNIX")))
            calls, pipes = [], []
            for worker in await stack.enter_async_context(self._start_workers(count)):
                address = str(listener.address)
                calls.append(worker.run.call_one(answer, address, target, selection, context))
                pipes.append(stack.enter_context(listener.accept()))
            yield pipes


class TestColocated(TestTorchStore):
    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        return selected("colocated")
