"""Transport ``torchstore`` and its settings. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from forge_core import BuildContext, Settings, TransportComponent

if TYPE_CHECKING:
    from forge_torchstore.transport import TorchStoreTransport

TESTED = "0.1.2"
"""Version of torchstore that this package was tested with."""

Storage = Literal["process", "colocated"]


class TorchStoreSettings(Settings):
    """Where TorchStore keeps the weights."""

    storage: Storage = Field(
        "process",
        description="process: a storage process of its own on the publisher's host, which outlives "
        "the trainer; colocated: inside the publishing process, which saves one",
    )


def build_torchstore(settings: TorchStoreSettings, context: BuildContext) -> TorchStoreTransport:
    from forge_torchstore import engine

    engine.load()
    from forge_torchstore.transport import TorchStoreTransport

    return TorchStoreTransport(
        context.channel,
        storage=settings.storage,
        rank=context.rank,
        world_size=context.world_size,
    )


TORCHSTORE = TransportComponent(
    name="torchstore",
    settings=TorchStoreSettings,
    build=build_torchstore,
    summary="TorchStore: sharded weights, between the processes of one host or several",
    reach="cluster",
)
