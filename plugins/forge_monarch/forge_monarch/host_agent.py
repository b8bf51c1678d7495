"""What the runtime has on every other host: an actor that says what is there, and kills."""

from __future__ import annotations

# Monarch is untyped to mypy.
# mypy: disable-error-code="misc, untyped-decorator"
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from monarch.actor import Actor, concurrent_endpoint

from forge_local.devices import visible_devices
from forge_monarch.exit_status import first_end, kill_groups

PACKAGES = ("torchmonarch", "forge-rl-core", "forge-rl-local", "forge-rl-monarch")
"""Both ends of a connection need the same version of these, and of Python."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What a host says of itself.

    Args:
        name: its own.
        python: Python's executable there.
        devices: ids of its GPUs.
        versions: of Python and ``PACKAGES``.
        clock: seconds since the epoch.
    """

    name: str
    python: str
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    clock: float

    @classmethod
    def here(cls) -> HostFacts:
        return cls(
            name=socket.gethostname(),
            python=sys.executable,
            devices=visible_devices(),
            versions={
                "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
                **{package: _version(package) for package in PACKAGES},
            },
            clock=time.time(),
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


class HostAgent(Actor):
    """Lives in a process of its own, so that it answers whatever replicas do."""

    @concurrent_endpoint
    async def facts(self) -> HostFacts:
        """What is there."""
        return HostFacts.here()

    @concurrent_endpoint
    async def sees(self, folder: Path) -> bool:
        """Whether a folder of the controller's is there."""
        return folder.is_dir()

    @concurrent_endpoint
    async def first_end(self, names: Sequence[str]) -> tuple[int, int | None]:
        """See ``ends.first_end``."""
        return await first_end(names)

    @concurrent_endpoint
    async def kill(self, groups: Sequence[int]) -> None:
        """See ``ends.kill_groups``."""
        await kill_groups(groups)
