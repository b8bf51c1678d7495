"""Which of this host's GPUs the ranks of a replica see."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import Placement, ReplicaSpec, RuntimeComponent, UsageError

if TYPE_CHECKING:
    from forge_core import Runtime, Selection, StageConfig


def visible_devices() -> tuple[str, ...]:
    """The CUDA devices this process may use, as ``CUDA_VISIBLE_DEVICES`` would list them.

    Counted from the driver's device files, so that no CUDA context is made and torch not imported.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        return tuple(name for name in names if name and name != "-1")
    count = sum(file.name.removeprefix("nvidia").isdigit() for file in Path("/dev").glob("nvidia*"))
    return tuple(str(index) for index in range(count))


def computes_on_cuda(device: str) -> bool:
    """Whether torch takes CUDA for ``device`` (``auto``, ``cpu`` or ``cuda``): it is a build that
    knows CUDA, and there is a device. Torch is not imported."""
    return device != "cpu" and not _torch_lacks_cuda() and bool(visible_devices())


def _torch_lacks_cuda() -> bool:
    """Whether torch is not installed, or as a build for the CPU."""
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def check_device(stage: StageConfig, runtime: Selection[Runtime]) -> None:
    """Refuse components that insist on CUDA where it is certain that torch has no device.

    Only on this host, for runtimes that keep replicas on it: nothing is known of others.

    Raises:
        UsageError: names the key, and why there is none.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None and not visible_devices()
    here = isinstance(runtime.component, RuntimeComponent) and runtime.component.in_process
    if not here or not (_torch_lacks_cuda() or hidden):
        return
    why = "CUDA_VISIBLE_DEVICES lists none" if hidden else "torch is a build for the CPU"
    for section, chosen, placement in (
        ("trainer", stage.trainer, stage.trainer_placement),
        ("generator", stage.generator, stage.generator_placement),
        ("reference", stage.reference, stage.reference_placement),
    ):
        key = chosen.location.cuda_key if chosen is not None else ""
        own = "CUDA_VISIBLE_DEVICES" in placement.env and not _torch_lacks_cuda()
        if key and not own:
            raise UsageError(f"{section}.{key}: no CUDA device: {why} (stage {stage.name!r})")


def devices_wanted(services: Mapping[str, Placement]) -> dict[str, int]:
    """Service -> devices that all its replicas need, for those that want any."""
    return {
        service: placement.procs * placement.replicas
        for service, placement in services.items()
        if placement.with_gpus
    }


def check_devices(host: str, wanted: Mapping[str, int], there: int) -> None:
    """The services that are to live on a host find their devices there.

    Args:
        host: in words.
        wanted: service -> devices that its replicas need on this host.
        there: devices that the host has.

    Raises:
        UsageError: there are too few, with the arithmetic.
    """
    needed = sum(wanted.values())
    if needed > there:
        shares = ", ".join(f"{count} with {service}" for service, count in wanted.items())
        raise UsageError(
            f"with_gpus: {host} has {there} GPUs and needs {needed}: {shares} (one for each of "
            "their procs)"
        )


class DeviceTable:
    """Gives each replica devices of its own; a replica that is started again gets the same ones.

    Args:
        devices: of this host.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._taken: dict[tuple[str, int], tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._devices)

    def assign(self, spec: ReplicaSpec) -> tuple[str, ...]:
        """The devices of a replica, one for each rank; none unless its placement wants them.

        Raises:
            UsageError: there are too few, with the arithmetic.
        """
        if not spec.placement.with_gpus:
            return ()
        key = (spec.name, spec.index)
        wanted = spec.placement.procs
        if len(self._taken.get(key, ())) != wanted:
            self._taken.pop(key, None)
            used = {device for devices in self._taken.values() for device in devices}
            free = [device for device in self._devices if device not in used]
            if len(free) < wanted:
                raise UsageError(self._too_few(spec, len(free)))
            self._taken[key] = tuple(free[:wanted])
        return self._taken[key]

    def _too_few(self, spec: ReplicaSpec, free: int) -> str:
        others: dict[str, int] = {}
        for (name, _), devices in self._taken.items():
            others[name] = others.get(name, 0) + len(devices)
        taken = ", ".join(f"{count} with {name}" for name, count in others.items())
        return (
            f"{spec.name}.with_gpus: replica {spec.index} needs {spec.placement.procs} GPUs (one "
            f"for each of its procs) and {free} are free: this host has {len(self._devices)}"
            + (f", of which {taken}" if taken else "")
        )
