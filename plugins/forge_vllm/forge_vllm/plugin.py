"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_core import Component, hookimpl
from forge_vllm.settings import GENERATOR

if TYPE_CHECKING:
    from forge_core.protocols import Generator


@hookimpl
def forge_generators() -> Iterable[Component[Generator]]:
    yield GENERATOR
