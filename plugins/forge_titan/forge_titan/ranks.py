"""This rank's place among the others: device, process group, meshes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from forge_core import BuildContext, UsageError
from forge_titan.degrees import Degrees, check_degrees
from forge_titan.torchtitan_api import ParallelDims, ParallelismConfig

T = TypeVar("T")

_members = 0
"""Trainers of this process that use torch's default process group, of which there is one only."""

_made_here = False
"""Whether it was one of them that made it."""


class Ranks:
    """The ranks that train together, seen from one of them.

    A trainer of one rank that computes in float32 needs no process group and makes none. With
    several ranks the environment says where the others are (``RANK``, ``MASTER_ADDR``, ...).

    Args:
        context: what the trainer is built with.
        device: ``cpu`` or ``cuda``.

    Raises:
        UsageError: the degrees do not fit the ranks or the model.
    """

    def __init__(self, context: BuildContext, device: str) -> None:
        distributed = context.distributed
        self.degrees: Degrees = check_degrees(context)
        self.rank = context.rank
        self.world_size = context.world_size
        self.wraps = (
            self.world_size > 1 or distributed.precision != "fp32" or distributed.enable_cpu_offload
        )
        """Whether modules are wrapped by FSDP2, which also does mixed precision and offloading."""
        self.device = _device(device, self.rank)
        if distributed.enable_cpu_offload and self.device.type == "cpu":
            raise UsageError(
                "distributed.enable_cpu_offload: frees an accelerator's memory, and this trainer "
                "runs on the CPU; leave it out"
            )
        self._in_group = False
        if self.wraps:
            self._join(offload=distributed.enable_cpu_offload)
        self.parallelism = ParallelismConfig(
            data_parallel_replicate_degree=self.degrees.replicate,
            data_parallel_shard_degree=self.degrees.shard,
            tensor_parallel_degree=self.degrees.tensor,
            pipeline_parallel_degree=self.degrees.pipeline,
            pipeline_parallel_schedule=distributed.pipeline_parallel_schedule,
            context_parallel_degree=self.degrees.context,
            # The balancer that knows block masks; packed sequences have no other.
            context_parallel_load_balancer="ptrr",
            expert_parallel_degree=self.degrees.expert,
            # The default needs an FSDP2 newer than torch 2.13's.
            spmd_backend="partial_dtensor",
        )
        self.dims: Any = ParallelDims.from_config(self.parallelism, self.world_size)

    def mesh(self, name: str) -> Any:
        """TorchTitan's mesh of that name; None where its degree is 1."""
        return self.dims.get_optional_mesh(name) if self.wraps else None

    @property
    def data_rank(self) -> int:
        """Which part of a batch this rank sees."""
        mesh = self.mesh("batch")
        return 0 if mesh is None else int(mesh.get_local_rank())

    def gather(self, value: T, mesh_name: str) -> Sequence[T]:
        """What every rank of a mesh gives, in their order. A collective."""
        mesh = self.mesh(mesh_name)
        if mesh is None:
            return [value]
        values: list[Any] = [None] * mesh.size()
        dist.all_gather_object(values, value, group=mesh.get_group())
        return values

    def from_all(self, value: T) -> Sequence[T]:
        """What every rank gives, in their order. A collective."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def from_stage(
        self, stage: int, tensor: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype
    ) -> torch.Tensor:
        """The tensor that a rank of the pipeline gives, on all of them. A collective."""
        group = self.mesh("pp").get_group()
        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        dist.broadcast(tensor, group_src=stage, group=group)
        return tensor

    def from_first(self, value: T) -> T:
        """What rank 0 gives, on every rank. A collective."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def close(self) -> None:
        """Leave the process group; the last to leave one that was made here ends it."""
        global _members, _made_here
        if not self._in_group:
            return
        self._in_group = False
        _members -= 1
        if _members == 0 and _made_here:
            _made_here = False
            if dist.is_initialized():
                dist.destroy_process_group()

    def _join(self, offload: bool) -> None:
        global _members, _made_here
        if not dist.is_initialized():
            self._make_group(offload)
            _made_here = True
        _members += 1
        self._in_group = True

    def _make_group(self, offload: bool) -> None:
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            backend = f"cuda:{backend},cpu:gloo" if offload else backend
        if self.world_size == 1:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend)


def _device(name: str, rank: int) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UsageError("trainer.device: cuda is asked for and this machine has none")
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", rank))
    return torch.device("cuda", local if torch.cuda.device_count() > 1 else 0)
