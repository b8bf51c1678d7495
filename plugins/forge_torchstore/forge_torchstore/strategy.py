"""Which of TorchStore's storage volumes a process puts into: the one on its own host, else any."""

from __future__ import annotations

from typing import Any

from torchstore import TorchStoreStrategy

from forge_torchstore import shared_volume
from forge_torchstore.segments import host_id


class NearestVolume(TorchStoreStrategy):  # type: ignore[misc]
    """One volume for each host that has one; volumes are named after their hosts."""

    @classmethod
    def get_volume_id(cls) -> str:
        return host_id()

    @classmethod
    def get_client_id(cls) -> str:
        return host_id()

    def select_storage_volume(self) -> tuple[Any, str]:
        own = self.get_client_id()
        host = own if own in self.volume_id_to_coord else next(iter(self.volume_id_to_coord))
        return self.get_storage_volume(host), host

    def get_storage_volume(self, volume_id: str) -> Any:
        volume = super().get_storage_volume(volume_id)
        if shared_volume.usable():
            return shared_volume.SharedVolume(volume, volume_id)
        return volume
