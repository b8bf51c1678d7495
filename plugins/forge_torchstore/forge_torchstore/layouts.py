"""Tensors and shards of them in the forms that TorchStore takes."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate
from torchstore.transport.pipe import Request, TensorSlice


def shard_of(name: str, tensor: torch.Tensor) -> DTensor | None:
    """The tensor if it is one process's part of a larger one, None if it is whole.

    Raises:
        ValueError: its parts are summands.
    """
    if not isinstance(tensor, DTensor):
        return None
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise ValueError(f"tensor {name!r} has partial values on each rank; reduce it first")
    sizes = tensor.device_mesh.shape
    split = [
        size > 1 and not isinstance(placement, Replicate)
        for size, placement in zip(sizes, tensor.placements, strict=True)
    ]
    return tensor if any(split) else None


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor that ``shard_of`` calls whole, without a graph."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes in a type that can be sent: Monarch's pickle knows no 8-bit floats."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def with_local(tensor: DTensor, local: torch.Tensor) -> DTensor:
    """A distributed tensor of the same layout whose part on this rank is ``local``.

    Not ``DTensor.from_local``, which would move a part in host memory to the mesh's device.
    """
    return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def whole_slice(shape: tuple[int, ...]) -> TensorSlice:
    """Asks for all of a tensor of that shape, and leaves shards without elements alone."""
    return TensorSlice(
        offsets=(0,) * len(shape),
        coordinates=(),
        global_shape=shape,
        local_shape=shape,
        mesh_shape=(),
    )


def slice_of(target: DTensor) -> TensorSlice:
    """Asks for this rank's part in the target's layout."""
    return Request.from_dtensor(target).tensor_slice
