"""Runtime ``local`` does what every runtime must do, with objects and with processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forge_core import Placement, Runtime
from forge_local.runtime import LocalRuntime
from forge_testing.conformance.runtime import ProcessRuntimeConformance, RuntimeConformance


@pytest.fixture
async def local() -> AsyncIterator[Runtime]:
    runtime = LocalRuntime()
    yield runtime
    await runtime.close()


class TestInThisProcess(RuntimeConformance):
    @pytest.fixture
    def runtime(self, local: Runtime) -> Runtime:
        return local


class TestIsolated(ProcessRuntimeConformance):
    placement = Placement(isolate=True)

    @pytest.fixture
    def runtime(self, local: Runtime) -> Runtime:
        return local
