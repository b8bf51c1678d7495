"""A trainer's weights on their way to its generators: versions, proof, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forge_core import RunFailed
from forge_core.contracts.blame import blaming
from forge_services.weight_update import update_weights

if TYPE_CHECKING:
    from forge_core import Selection, Transport, WeightManifest
    from forge_services.service import Service


_PURE = frozenset({"logprobs", "publish", "hold_reference", "save", "load"})
"""Methods of trainers that leave weights and optimizer as they are."""


def changes(trainer: Service) -> int:
    """Calls so far that may have changed the weights or the state of a trainer."""
    return sum(count for method, count in trainer.answered.items() if method not in _PURE)


def weight_changes(trainer: Service) -> int:
    """Calls so far that may have changed its weights."""
    return changes(trainer) - trainer.idle_steps


class Publishing:
    """The published versions of one trainer.

    Args:
        version: last published by an earlier process; -1: none was.
        selection: the transport that trainer and generators are built with.
        transport: gives the controller's own end of it.
        warn: shows a warning.
    """

    def __init__(
        self,
        *,
        version: int,
        selection: Selection[Transport] | None,
        transport: Callable[[], Transport],
        warn: Callable[[str], None],
    ) -> None:
        self.version = version
        """Last published; -1 before the first."""
        self._selection = selection
        self._transport = transport
        self._warn = warn
        self._manifest: WeightManifest | None = None
        self._changes = -1
        """``weight_changes`` of the trainer when it last published."""

    @property
    def has_published(self) -> bool:
        """Whether this process has."""
        return self._manifest is not None

    async def send(self, trainer: Service, generators: Sequence[Service]) -> int:
        """Send the trainer's weights to every replica, proved by checksum, unless they have them
        already; returns the version.

        Args:
            trainer: whose weights.
            generators: that sample from them.
        """
        now = weight_changes(trainer)
        changed, self._changes = now != self._changes, now
        if not changed and self._manifest is not None:
            return self.version
        manifest: WeightManifest = await trainer.publish.route(self.version + 1)
        for generator in generators:
            await update_weights(generator, manifest)
        before, self._manifest = self._manifest, manifest
        self.version = manifest.version
        if before is None:
            return self.version
        assert self._selection is not None
        transport = self._transport()
        with blaming(self._selection, "drop", RunFailed):
            await transport.drop(before.version)
        if before.checksum == manifest.checksum:
            self._warn(
                f"version {manifest.version} equals version {before.version}: "
                "the last steps changed no weight",
            )
        return self.version
