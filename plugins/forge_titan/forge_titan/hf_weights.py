"""Weights between TorchTitan's models and folders in Hugging Face layout, one tensor at a time.

Names and layouts are translated by TorchTitan's own state-dict adapters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from forge_core import DataError

if TYPE_CHECKING:
    from forge_titan.policy import Policy

SHARD_BYTES = 4 * 2**30
"""Weights are split into files of this size."""


@torch.no_grad()
def load_weights(policy: Policy, folder: Path) -> None:
    """Fill this rank's part of a policy from a folder. Every rank reads for itself.

    Raises:
        DataError: a tensor is missing, has another shape, or has no place in the model: names it.
    """
    wanted = {name: hf_shapes(policy, name, shape) for name, shape in policy.shapes.items()}
    with ExitStack() as stack:
        stored = _open(folder, stack)
        _check(folder, {k: s for shapes in wanted.values() for k, s in shapes.items()}, stored)
        for name, target in policy.state().items():
            if not wanted[name]:
                continue  # tied to another, which is loaded
            given = {key: stored[key]() for key in wanted[name]}
            # Adapters look for a head when embeddings are tied to it; a stand-in keeps them calm.
            given.setdefault("lm_head.weight", torch.empty(0))
            _copy(target, policy.adapter.from_hf(given)[name])


def hf_weights(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face names and whole tensors, on every rank; a collective for each tensor."""
    state = policy.state()
    stages = policy.ranks.gather(set(state), "pp")
    for name in policy.shapes:
        value = state.get(name)
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if len(stages) > 1:
            owner = next(stage for stage, names in enumerate(stages) if name in names)
            whole = policy.ranks.from_stage(owner, whole, policy.shapes[name], policy.dtype)
        assert whole is not None
        yield from policy.adapter.to_hf({name: whole}).items()


def hf_shards(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face names and this rank's DTensors (whole tensors where nothing is sharded).

    What is laid out in another way (Llama's queries and keys) is gathered, one tensor at a time,
    and sharded again as it was: a reordered shard is not a shard of the reordered.
    """
    for name, value in policy.state().items():
        blank = torch.empty(value.shape, device="meta")
        renamed = policy.adapter.to_hf({name: blank})
        if not isinstance(value, DTensor) or all(tensor is blank for tensor in renamed.values()):
            yield from policy.adapter.to_hf({name: value}).items()
            continue
        for key, whole in policy.adapter.to_hf({name: value.full_tensor()}).items():
            yield key, _sharded_as(value, whole)


def hf_shapes(policy: Policy, name: str, shape: torch.Size) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of one of TorchTitan's tensors; none if tied to another."""
    blank = torch.empty(shape, device="meta")
    return {key: tuple(t.shape) for key, t in policy.adapter.to_hf({name: blank}).items()}


def save_weights(policy: Policy, source: Path, folder: Path) -> None:
    """Write weights and ``config.json`` so that transformers can load the folder.

    Every rank calls it; rank 0 writes. Memory: one file's worth of tensors on rank 0.
    """
    from safetensors.torch import save_file

    first = policy.ranks.rank == 0
    held: dict[str, torch.Tensor] = {}
    used = 0
    files: list[tuple[Path, list[str]]] = []
    total = 0

    def write() -> None:
        path = folder / f"model-{len(files) + 1:05d}.safetensors"
        save_file(held, path, metadata={"format": "pt"})
        files.append((path, list(held)))

    for name, tensor in hf_weights(policy):
        if not first:
            continue
        if held and used + tensor.nbytes > SHARD_BYTES:
            write()
            held, used = {}, 0
        held[name] = tensor.detach().contiguous().cpu()
        used += tensor.nbytes
        total += tensor.nbytes
    if first:
        write()
        _name_files(folder, files, total)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(policy.dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        if (source / "generation_config.json").is_file():
            shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")


def _name_files(folder: Path, files: list[tuple[Path, list[str]]], total: int) -> None:
    if len(files) == 1:
        files[0][0].rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, (path, names) in enumerate(files, start=1):
        final = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        path.rename(folder / final)
        weight_map |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


class _Stored:
    """A tensor in a file, read when it is called."""

    def __init__(self, shape: tuple[int, ...], read: Any) -> None:
        self.shape = shape
        self._read = read

    def __call__(self) -> torch.Tensor:
        tensor: torch.Tensor = self._read()
        return tensor


def _open(folder: Path, stack: ExitStack) -> dict[str, _Stored]:
    """Every tensor of a folder by name; files stay open until the stack is left."""
    from safetensors import SafetensorError, safe_open

    stored: dict[str, _Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise DataError(f"model folder {folder}: {path.name}: {error}") from error
        for key in file.keys():  # noqa: SIM118 - not a mapping
            shape = tuple(file.get_slice(key).get_shape())
            stored[key] = _Stored(shape, lambda file=file, key=key: file.get_tensor(key))
    if not stored:
        raise DataError(
            f"model folder {folder}: trainer titan reads *.safetensors, and none is there"
        )
    return stored


def _check(
    folder: Path, wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, _Stored]
) -> None:
    where = f"model folder {folder}: "
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise DataError(f"{where}the weights have no {_some(missing)}")
    wrong = [
        f"{name} is {list(stored[name].shape)} and config.json says {list(shape)}"
        for name, shape in wanted.items()
        if stored[name].shape != shape
    ]
    if wrong:
        raise DataError(f"{where}{_some(wrong)}")
    ignored = {"lm_head.weight"}  # a copy of tied embeddings
    extra = [n for n in stored if n not in wanted and n not in ignored and "rotary_emb" not in n]
    if extra:
        raise DataError(f"{where}TorchTitan's model has no place for {_some(extra)}")


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _copy(target: torch.Tensor, whole: torch.Tensor) -> None:
    if isinstance(target, DTensor):
        target.to_local().copy_(_sharded_as(target, whole.to(target.dtype)).to_local())
    else:
        target.copy_(whole)


def _sharded_as(like: DTensor, whole: torch.Tensor) -> DTensor:
    """This rank's part of a tensor that every rank has whole. Sends nothing."""
    mesh = like.device_mesh
    return distribute_tensor(whole.to(mesh.device_type), mesh, like.placements, src_data_rank=None)
