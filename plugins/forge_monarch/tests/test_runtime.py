"""Runtime ``monarch`` on this host: what every runtime must do, and what only this one does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forge_core.protocols import Runtime
from forge_core.testing.conformance.runtime import ProcessRuntimeConformance
from forge_core.testing.context import bare_context
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    runtime = MONARCH.build(MonarchSettings(), bare_context())
    yield runtime
    await runtime.close()


class TestOnThisHost(ProcessRuntimeConformance):
    @pytest.fixture
    def runtime(self, runtime: Runtime) -> Runtime:
        return runtime
