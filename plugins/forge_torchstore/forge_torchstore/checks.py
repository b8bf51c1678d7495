"""What the transport ``torchstore`` refuses before anything starts. Imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec

from forge_core import BuildContext, PluginError
from forge_torchstore.settings import TorchStoreSettings

TESTED = "0.1.2"
"""Version of torchstore that this package was tested with."""

INSTALL = (
    f"pip install torchmonarch==0.7.0 pygtrie && pip install --no-deps torchstore=={TESTED} "
    "(its metadata pins an older torch and Monarch)"
)


def check_installed(settings: TorchStoreSettings, context: BuildContext) -> None:
    """Raises:
    PluginError: TorchStore is not installed; names the command that fixes it.
    """
    if find_spec("torchstore") is None:
        raise PluginError(f"transport 'torchstore': torchstore is not installed; {INSTALL}")
