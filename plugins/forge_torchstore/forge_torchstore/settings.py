"""Settings of the transport ``torchstore``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings

Storage = Literal["process", "colocated"]


class TorchStoreSettings(Settings):
    """Where TorchStore keeps the weights."""

    storage: Storage = Field(
        "process",
        description="process: a storage process of its own on the publisher's host, which outlives "
        "the trainer; colocated: inside the publishing process, which saves one",
    )
