"""What the runtime has on every other host: an actor that says what is there, and kills."""

from __future__ import annotations

# Monarch is untyped to mypy.
# mypy: disable-error-code="misc, untyped-decorator"
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch.actor import Actor, concurrent_endpoint

from forge_core.runtimes.devices import visible_devices
from forge_monarch.ends import first_end, kill_groups


class Warden(Actor):
    """Lives in a process of its own, so that it answers whatever replicas do."""

    @concurrent_endpoint
    async def devices(self) -> tuple[str, ...]:
        """Ids of the host's GPUs."""
        return visible_devices()

    @concurrent_endpoint
    async def address(self) -> str:
        """The host's name."""
        return socket.gethostname()

    @concurrent_endpoint
    async def sees(self, folder: Path) -> bool:
        """Whether a folder of the controller's is there."""
        return folder.is_dir()

    @concurrent_endpoint
    async def python(self) -> str:
        """Python's executable."""
        return sys.executable

    @concurrent_endpoint
    async def first_end(self, names: Sequence[str]) -> tuple[int, int | None]:
        """See ``ends.first_end``."""
        return await first_end(names)

    @concurrent_endpoint
    async def kill(self, groups: Sequence[int]) -> None:
        """See ``ends.kill_groups``."""
        await kill_groups(groups)
