"""Weights on their way into the engine: what is checked, and what an error leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import forge_vllm.weight_loading
from forge_core import WeightMismatch
from forge_tensors.checksum import checksum, digest
from forge_vllm.weight_loading import Copied, WeightStream, copy_some, folder_shapes, optional_names
from forge_vllm.worker_extension import packed_matrices, repack

SHAPES = {"a.weight": (2, 3), "b.weight": (4,), "lm_head.weight": (2, 3)}
NONE: frozenset[str] = frozenset()


def tensors(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Tensors that fit ``SHAPES``, but for changes by the name's first letter."""
    made = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    for letter, tensor in changes.items():
        name = next(name for name in made if name.startswith(letter))
        if tensor is None:
            del made[name]
        else:
            made[name] = tensor
    return made


def copied(pairs: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Copied]:
    return (Copied(name, tensor, digest(name, tensor)) for name, tensor in pairs)


def test_all_tensors_pass_and_are_weighed() -> None:
    weights = tensors()
    stream = WeightStream(copied(weights.items()), SHAPES, NONE)
    assert dict(stream).keys() == weights.keys()
    assert stream.finish() == {"checksum": checksum(weights.items()), "tensors": 3, "bytes": 64}


async def test_tensors_are_kept_from_a_source_that_uses_its_memory_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def source() -> AsyncIterator[tuple[str, torch.Tensor]]:
        buffer = torch.zeros(6)
        for value, (name, shape) in enumerate(SHAPES.items()):
            buffer.fill_(value)
            yield name, buffer[: torch.Size(shape).numel()].view(shape)

    monkeypatch.setattr(forge_vllm.weight_loading, "COPIED_AT_ONCE", 30)  # bytes: two of them
    stream, parts = source(), []
    while copies := await copy_some(stream):
        parts.append([float(tensor.mean()) for _, tensor, _ in copies])
    assert parts == [[0.0, 1.0], [2.0]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (tensors(b=None), "1 of 3 weights never came: b.weight"),
        (tensors(b=torch.zeros(5)), r"b.weight came as \[5\]; the generator's model has \[4\]"),
        ({"c.weight": torch.zeros(1)}, "weights hold c.weight, which"),
    ],
)
def test_what_does_not_fit_ends_the_stream_and_is_raised_behind_it(
    weights: dict[str, torch.Tensor], message: str
) -> None:
    stream = WeightStream(copied(weights.items()), SHAPES, NONE)
    assert len(list(stream)) < 3
    with pytest.raises(WeightMismatch, match=message):
        stream.finish()


def test_a_tensor_that_comes_twice() -> None:
    stream = WeightStream(copied([*tensors().items(), *tensors().items()]), SHAPES, NONE)
    assert len(list(stream)) == 3
    with pytest.raises(WeightMismatch, match=r"a\.weight came twice"):
        stream.finish()


def test_an_error_of_the_source_is_raised_behind_the_stream() -> None:
    def source() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a.weight", torch.zeros(2, 3)
        raise KeyError("no version 7")

    stream = WeightStream(copied(source()), SHAPES, NONE)
    assert len(list(stream)) == 1
    with pytest.raises(KeyError, match="no version 7"):
        stream.finish()


@pytest.mark.parametrize("tied", [True, False])
def test_only_a_tied_head_need_not_come(tmp_path: Path, tied: bool) -> None:
    (tmp_path / "config.json").write_text(f'{{"tie_word_embeddings": {str(tied).lower()}}}')
    save_file(tensors(), tmp_path / "model.safetensors")
    shapes = folder_shapes(tmp_path)
    assert shapes == SHAPES
    stream = WeightStream(copied(tensors(l=None).items()), shapes, optional_names(tmp_path, shapes))
    list(stream)
    if tied:
        assert stream.finish()["tensors"] == 2
    else:
        with pytest.raises(WeightMismatch, match="lm_head"):
            stream.finish()


class PackedLayer(torch.nn.Module):
    """Computes with a copy of its weight, as vLLM's layers do on a CPU."""

    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 2), requires_grad=False)
        self.quant_method = self
        self._packs = True
        self.process_weights_after_loading(self)
        self._packs = packs

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if self._packs:
            packed = self.weight.clone()
            self.cpu_linear = lambda x: x @ packed


def test_a_layer_that_was_not_packed_again_is_packed() -> None:
    model = torch.nn.ModuleDict({"head": PackedLayer(packs=True)})
    before = packed_matrices(model)
    model["head"].weight.fill_(1.0)
    repack(model, before)
    assert model["head"].cpu_linear(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_a_layer_that_keeps_its_old_matrix_is_an_error() -> None:
    model = torch.nn.ModuleDict({"head": PackedLayer(packs=False)})
    with pytest.raises(WeightMismatch, match="still computes head with the weights it had before"):
        repack(model, packed_matrices(model))
