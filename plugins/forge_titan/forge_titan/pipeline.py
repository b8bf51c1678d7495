"""A model whose layers lie on several ranks, and the schedule that packed batches go through it.

TorchTitan splits the model; torch's schedules move micro-batches from stage to stage. They know
micro-batches of one shape only, so batches are padded to one length here, and a schedule is made
again when their number or that length changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor

from forge_tensors import attention
from forge_tensors.batch import PackedBatch
from forge_titan.ranks import Ranks

Score = Callable[[int, torch.Tensor], torch.Tensor]
"""(index of a batch, output of the final norm [1, T, H]) -> what to go backward from."""

ROUND = 32
"""Lengths are padded to a multiple of this, so that fewer schedules are made."""


class Pipeline:
    """Runs batches through the stages of which some are on this rank.

    Args:
        model: the whole, on the meta device.
        spec: TorchTitan's definition of it.
        how: what TorchTitan's functions that spread a model are called with.
        ranks: where the others are.
        dtype: of what goes from stage to stage.
    """

    def __init__(
        self, model: Any, spec: Any, how: dict[str, Any], ranks: Ranks, dtype: torch.dtype
    ) -> None:
        self._ranks = ranks
        self._dtype = dtype
        self._hidden = int(spec.model.dim)
        self._window = int(spec.model.max_seq_len)
        self._kind = get_schedule_class(ranks.parallelism.pipeline_parallel_schedule)
        # The schedule that comes with the parts is for one fixed number of batches: not used.
        schedule, self.parts, _, self.last = spec.pipelining_fn(
            model,
            **how,
            device=ranks.device,
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=self._loss,
        )
        stages = schedule._stages if self._in_rounds else [schedule._stage]
        self._indices = [stage.stage_index for stage in stages]
        self._score: Score | None = None
        self._rehearses = False
        self._ready: tuple[tuple[int, int, bool], Any] | None = None
        for part in self.parts:
            part.register_forward_pre_hook(_with_masks, with_kwargs=True)

    @property
    def _in_rounds(self) -> bool:
        """Whether each rank has several stages."""
        return issubclass(self._kind, PipelineScheduleMulti)

    def run(self, batches: Sequence[PackedBatch], score: Score, *, train: bool) -> None:
        """Put batches through all stages; a collective of the pipeline's ranks.

        Args:
            batches: every rank of the pipeline is given the same.
            score: called for each batch in order, on the rank that has the last stage.
            train: go backward from what ``score`` returns; gradients add up.
        """
        length = max(batch.tokens.numel() for batch in batches)
        length = -(-length // ROUND) * ROUND
        tokens = torch.stack([_padded(batch.tokens, length) for batch in batches])
        positions = torch.stack([self._positions(batch.positions, length) for batch in batches])
        indices = torch.arange(len(batches), device=tokens.device)[:, None]
        schedule = self._schedule(len(batches), length, train)
        self._score = score
        try:
            with torch.set_grad_enabled(train):
                (schedule.step if train else schedule.eval)(
                    *([tokens] if 0 in self._indices else []),
                    target=indices if self.last else None,
                    positions=positions,
                    return_outputs=False,
                )
        finally:
            self._score = None

    def _schedule(self, count: int, length: int, train: bool) -> Any:
        key = (count, length, train)
        if self._ready is None or self._ready[0] != key:
            stages = [
                self._stage(part, index, length, train)
                for part, index in zip(self.parts, self._indices, strict=True)
            ]
            schedule = self._kind(
                stages if self._in_rounds else stages[0],
                n_microbatches=count,
                loss_fn=self._loss,
                scale_grads=False,
            )
            self._ready = (key, schedule)
        return self._ready[1]

    def _stage(self, part: Any, index: int, length: int, train: bool) -> PipelineStage:
        mesh = self._ranks.mesh("pp")
        total = mesh.size() * len(self.parts)
        shapes: dict[str, Any] = {}
        if self._ranks.degrees.tensor == 1:
            between = torch.empty(
                (1, length, self._hidden), dtype=self._dtype, device="meta", requires_grad=train
            )
            tokens = torch.empty((1, length), dtype=torch.int64, device="meta")
            shapes = {"input_args": tokens if index == 0 else between, "output_args": between}
        # How tensor parallelism lays out what goes between stages is found out by a rehearsal.
        self._rehearses = not shapes and train
        return PipelineStage(
            part,
            index,
            total,
            self._ranks.device,
            **shapes,
            group=mesh.get_group(),
            get_mesh=lambda names, layout: self._ranks.dims.get_mesh(list(names)),
        )

    def _loss(self, hidden: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if self._rehearses:
            self._rehearses = False
            return (hidden.to_local() if isinstance(hidden, DTensor) else hidden).sum()
        assert self._score is not None
        return self._score(int(index), hidden)

    def _positions(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Padding is in sequences of its own, none longer than the window."""
        rest = length - positions.numel()
        return torch.cat([positions, torch.arange(rest, device=positions.device) % self._window])


def _padded(tokens: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(tokens, (0, length - tokens.numel()))


def _with_masks(
    part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give a part attention's layout, from the positions: they restart at 0 in each sequence."""
    positions = kwargs["positions"][0]
    starts = (positions == 0).nonzero().flatten().tolist()
    ends = [*starts[1:], positions.numel()]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    return args, {**kwargs, "attention_masks": attention.plan(lengths, positions.device)}
