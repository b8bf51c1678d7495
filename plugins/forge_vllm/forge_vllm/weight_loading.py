"""New weights on their way into the engine: copied, weighed and checked one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open

from forge_core import WeightMismatch
from forge_tensors.checksum import combined, digest

TIED_HEAD = "lm_head.weight"
"""Need not come where the model's embeddings are tied to it."""

COPIED_AT_ONCE = 32 * 2**20
"""Bytes: little beside a model, and enough that going from one thread to another costs nothing."""


class Copied(NamedTuple):
    """A tensor that has come, and its part of the checksum."""

    name: str
    tensor: torch.Tensor
    digest: bytes


async def copy_some(source: AsyncIterator[tuple[str, torch.Tensor]]) -> list[Copied]:
    """Copies of a transport's next tensors: a few MiB, or one that is larger; none at its end.

    vLLM holds some tensors back until others have come (the parts of a fused matrix), while a
    transport's is only valid until the next one is asked for. vLLM lets go of a copy when it has
    loaded it.
    """
    copies: list[Copied] = []
    size = 0
    while size < COPIED_AT_ONCE and (pair := await anext(source, None)) is not None:
        name, tensor = pair
        copy = tensor.detach().clone()
        copies.append(Copied(name, copy, digest(name, copy)))
        size += copy.nbytes
    return copies


class WeightStream:
    """The tensors of a version, as vLLM's loader asks for them.

    What does not fit the model ends the stream early instead of raising inside vLLM's loader, which
    must come to its end to stay usable; ``finish`` raises it.

    Args:
        source: of what has come, by Hugging Face name.
        shapes: of the model's tensors by name, all of which must come.
        optional: names among them that need not.
    """

    def __init__(
        self,
        source: Iterator[Copied],
        shapes: Mapping[str, tuple[int, ...]],
        optional: frozenset[str],
    ) -> None:
        self._source = source
        self._shapes = shapes
        self._optional = optional
        self._digests: dict[str, bytes] = {}
        self._bytes = 0
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name, tensor, weighed in self._source:
                self._check(name, tensor)
                self._digests[name] = weighed
                self._bytes += tensor.nbytes
                yield name, tensor
            self._check_complete()
        except Exception as error:
            self._error = error

    def finish(self) -> dict[str, str | int]:
        """What was loaded, after the loader has taken all: checksum, tensors and bytes.

        Raises:
            WeightMismatch: a tensor is unknown, came twice or in another shape, or never came.
            Exception: as the source raised it.
        """
        if self._error is not None:
            raise self._error
        return {
            "checksum": combined(self._digests.values()),
            "tensors": len(self._digests),
            "bytes": self._bytes,
        }

    def _check(self, name: str, tensor: torch.Tensor) -> None:
        shape = self._shapes.get(name)
        if shape is None:
            raise WeightMismatch(f"weights hold {name}, which the generator's model does not have")
        if name in self._digests:
            raise WeightMismatch(f"{name} came twice")
        if tuple(tensor.shape) != shape:
            raise WeightMismatch(
                f"{name} came as {list(tensor.shape)}; the generator's model has {list(shape)}"
            )

    def _check_complete(self) -> None:
        missing = sorted(self._shapes.keys() - self._digests.keys() - self._optional)
        if missing:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise WeightMismatch(
                f"{len(missing)} of {len(self._shapes)} weights never came: {shown}"
            )


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model folder by name, from the heads of its safetensors files.

    vLLM loaded exactly these at its start, and refuses to start when one of its parameters is then
    not set; so weights with the same names set all of them.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                shapes[name] = tuple(opened.get_slice(name).get_shape())
    return shapes


def optional_names(folder: Path, shapes: Iterable[str]) -> frozenset[str]:
    """Names that a trainer may leave out: those of tied weights."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return (
        frozenset({TIED_HEAD} & set(shapes)) if config.get("tie_word_embeddings") else frozenset()
    )


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]
