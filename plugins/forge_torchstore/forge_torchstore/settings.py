"""Transport ``torchstore`` and its settings. Imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from forge_core import BuildContext, PluginError, Settings, TransportComponent

TESTED = "0.1.2"
"""Version of torchstore that this package was tested with."""

INSTALL = (
    f"pip install torchmonarch==0.7.0 pygtrie && pip install --no-deps torchstore=={TESTED} "
    "(its metadata pins an older torch and Monarch)"
)

Storage = Literal["process", "colocated"]


class TorchStoreSettings(Settings):
    """Where TorchStore keeps the weights."""

    storage: Storage = Field(
        "process",
        description="process: a storage process of its own on the publisher's host, which outlives "
        "the trainer; colocated: inside the publishing process, which saves one",
    )


def check_installed(settings: TorchStoreSettings, context: BuildContext) -> None:
    """Raises:
    PluginError: TorchStore is not installed; names the command that fixes it.
    """
    if find_spec("torchstore") is None:
        raise PluginError(f"transport 'torchstore': torchstore is not installed; {INSTALL}")


TORCHSTORE = TransportComponent(
    name="torchstore",
    settings=TorchStoreSettings,
    build="forge_torchstore.torchstore_api:build",
    check=check_installed,
    summary="TorchStore: sharded weights, between the processes of one host or several",
    reach="cluster",
    fabric="monarch",
    default=True,
)
