"""Swap a model's weights in place for those that a transport streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import torch

from forge_core import WeightManifest, WeightMismatch
from forge_tensors.checksum import checksum
from forge_torch.generator.decoder import Decoder


async def swap_weights(
    decoder: Decoder, version: int, fetched: AsyncIterator[tuple[str, torch.Tensor]]
) -> WeightManifest:
    """Copy every tensor into its place as it comes, and say what is now held.

    Of tied weights one name is enough, as in Hugging Face files.

    Returns:
        The manifest, with the checksum of what the decoder holds under the names that came.

    Raises:
        WeightMismatch: a tensor is unknown, or of another shape or type, or some never came. What
            the decoder then holds is of no version.
    """
    views, shapes = decoder.weights(), decoder.shapes()
    names = []
    async for name, tensor in fetched:
        _check(name, tensor, views, shapes)
        with torch.inference_mode():
            views[name].copy_(tensor.detach().reshape(views[name].shape))
        names.append(name)
    _check_complete(names, views)
    with torch.inference_mode():
        digest = checksum((name, views[name].reshape(shapes[name])) for name in names)
    return WeightManifest(
        version=version,
        checksum=digest,
        tensors=len(names),
        bytes=sum(views[name].numel() * views[name].element_size() for name in names),
    )


def _check(
    name: str,
    tensor: torch.Tensor,
    views: Mapping[str, torch.Tensor],
    shapes: Mapping[str, torch.Size],
) -> None:
    if name not in views:
        raise WeightMismatch(f"weights hold {name}, which the generator's model does not have")
    if tensor.shape != shapes[name] or tensor.dtype != views[name].dtype:
        raise WeightMismatch(
            f"{name} came as {_kind(tensor.shape, tensor.dtype)}; the generator's model has "
            f"{_kind(shapes[name], views[name].dtype)}"
        )


def _check_complete(names: list[str], views: Mapping[str, torch.Tensor]) -> None:
    came = {views[name].data_ptr() for name in names}
    missing = [name for name, view in views.items() if view.data_ptr() not in came]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise WeightMismatch(f"{len(missing)} of {len(views)} weights never came: {shown}")


def _kind(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
