"""A model of TorchTitan's, spread over the ranks, that scores packed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from forge_core import DistributedSection, OutputNeeds, UsageError
from forge_tensors import attention
from forge_tensors.batch import PackedBatch
from forge_tensors.compilation import missing_for_compilation
from forge_tensors.logprobs import NOTHING, Scores, Terms, Tokens
from forge_tensors.rows import gather_rows
from forge_titan import cpu
from forge_titan.context_parallel import all_reduce_scores, local_targets, split_batch
from forge_titan.flavors import check_flavor
from forge_titan.head import LogprobHead
from forge_titan.hf_weights import load_weights
from forge_titan.model_spec import model_spec, padding_token, use_flex_attention
from forge_titan.pipeline import Pipeline
from forge_titan.ranks import Ranks
from forge_titan.torchtitan_api import (
    CompileConfig,
    FullAC,
    SelectiveAC,
    TrainingConfig,
    apply_compile,
    set_default_dtype,
    set_spmd_backend,
)

Read = Callable[[int, Scores], torch.Tensor]
"""(index of a batch, its scores) -> what to go backward from."""


class Policy:
    """Logprobs of the trained tokens of a packed batch.

    Args:
        folder: the model in Hugging Face layout.
        dtype: type that weights are kept in.
        ranks: where it is spread to.
        distributed: precision and what saves memory.
        flavor: TorchTitan's name of the size that the model must have; None: any.

    Raises:
        DataError: the folder cannot be loaded, or TorchTitan has no such model.
        UsageError: TorchTitan has no such flavour, or layers are to be compiled where torch cannot.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        ranks: Ranks,
        distributed: DistributedSection,
        flavor: str | None = None,
    ) -> None:
        self.ranks = ranks
        self.dtype = dtype
        spec = model_spec(folder)
        if flavor is not None:
            check_flavor(spec.name, flavor, spec.model, folder)
        self.config: Any = spec.model
        if ranks.degrees.context > 1 and ranks.device.type == "cuda":
            use_flex_attention(spec)
        set_spmd_backend(ranks.parallelism.spmd_backend)
        # Fills in how each module is sharded, and refuses degrees that the model cannot have.
        spec.model.update_from_config(config=SimpleNamespace(parallelism=ranks.parallelism))
        head = spec.model.lm_head
        spec.model.lm_head = LogprobHead.Config(
            in_features=head.in_features,
            out_features=head.out_features,
            param_init=head.param_init,
            sharding_config=_weight_only(head.sharding_config),
        )
        with torch.device("meta"), set_default_dtype(dtype):
            model = spec.model.build()
        self.shapes = {name: value.shape for name, value in model.state_dict().items()}
        """Of the whole model's tensors, by TorchTitan's names."""
        self.parts, self._pipeline = _spread(model, spec, dtype, ranks, distributed)
        for part in self.parts:
            part.to_empty(device="cpu" if distributed.enable_cpu_offload else ranks.device)
            with torch.no_grad():
                part.init_weights(buffer_device=ranks.device)
            _share_rope(part)
            _skip_padding(part, padding_token(folder), ranks)
            part._skip_lm_head = True
        self.adapter: Any = spec.state_dict_adapter(spec.model, None)
        load_weights(self, folder)

    @property
    def window(self) -> int:
        """Most tokens of a sequence."""
        return int(self.config.max_seq_len)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        return int(self.config.vocab_size)

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """TorchTitan's names and this rank's parameters."""
        for part in self.parts:
            for name, parameter in part.named_parameters():
                yield name.replace("_checkpoint_wrapped_module.", ""), parameter

    def state(self) -> dict[str, torch.Tensor]:
        """TorchTitan's names and this rank's tensors, tied ones under both names."""
        return {name: value for part in self.parts for name, value in part.state_dict().items()}

    @property
    def has_head(self) -> bool:
        """Whether this rank has the head, and so is handed scores."""
        return self._pipeline is None or self._pipeline.last

    def run(
        self,
        batches: Sequence[PackedBatch],
        read: Read,
        *,
        train: bool,
        temperature: float = 1.0,
        needs: OutputNeeds = NOTHING,
        terms: Sequence[Terms | None] = (),
    ) -> None:
        """Score batches, and train on what is read from their scores. A collective.

        Args:
            batches: on the model's device; equally many on every rank.
            read: takes the logprobs of the N trained tokens of a batch and what else is asked
                for, in float32; called in order, on the ranks that have the head.
            train: go backward from what ``read`` returns; gradients add up.
            temperature: logits are divided by it.
            needs: what ``read`` wants beside logprobs (``LogprobHead``).
            terms: what to make of each batch's log-probabilities of the vocabulary; none: nothing.
        """
        made = terms or [None] * len(batches)

        def score(index: int, hidden: torch.Tensor) -> torch.Tensor:
            batch = batches[index]
            rows = gather_rows(local(hidden)[0], batch.targets - 1)
            targets = batch.tokens[batch.targets]
            return read(
                index, self.parts[-1].lm_head(rows, targets, temperature, needs, made[index])
            )

        if self._pipeline is not None and batches:
            self._pipeline.run(batches, score, train=train)
            return
        split = self.ranks.degrees.context > 1
        for index, batch in enumerate(batches):
            with torch.set_grad_enabled(train):
                if split:
                    scores = self._score_split(batch, temperature, needs, made[index])
                    result = read(index, scores)
                else:
                    result = score(index, self._hidden(batch))
            if train:
                torch.autograd.backward(result)

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        (model,) = self.parts
        hidden: torch.Tensor = model(
            batch.tokens[None],
            positions=batch.positions[None],
            attention_masks=attention.plan(batch.lengths, batch.tokens.device),
        )
        return hidden

    def _score_split(
        self, batch: PackedBatch, temperature: float, needs: OutputNeeds, terms: Terms | None
    ) -> Scores:
        """Scores of a batch of whose tokens this rank runs a part."""
        (model,) = self.parts
        part = split_batch(batch, self.ranks, self.window)
        hidden = local(model(part.tokens, positions=part.positions, attention_masks=part.mask))
        indices, rows = local_targets(part.places, batch.targets - 1)

        def theirs(log_softmax: torch.Tensor, tokens: Tokens) -> torch.Tensor:
            assert terms is not None
            return terms(log_softmax, indices[tokens])

        scores: Scores = model.lm_head(
            gather_rows(hidden[0], rows),
            batch.tokens[batch.targets[indices]],
            temperature,
            needs,
            None if terms is None else theirs,
        )
        count = batch.targets.numel()
        return scores.map(lambda mine: all_reduce_scores(mine, indices, count, self.ranks))

    def release(self) -> None:
        """End forward passes that no backward pass follows, for FSDP waits for one.

        Until then it keeps gathered weights, which would outlive a change of the sharded ones.
        """
        for part in self.parts:
            if isinstance(part, FSDPModule):
                part.reset_iter_state()

    @torch.no_grad()
    def copy_from(self, other: Policy) -> None:
        """Take the weights of a policy that is spread likewise."""
        mine = dict(self.named_parameters())
        for name, parameter in other.named_parameters():
            local(mine[name]).copy_(local(parameter))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, sharing memory with it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _spread(
    model: Any, spec: Any, dtype: torch.dtype, ranks: Ranks, distributed: DistributedSection
) -> tuple[list[Any], Pipeline | None]:
    """This rank's parts of the model, and the pipeline that they are stages of, if any."""
    saving = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}
    checkpointing = saving[distributed.activation_checkpoint]
    if distributed.compile and ranks.device.type == "cpu":
        missing = missing_for_compilation()
        if missing is not None:
            raise UsageError(f"distributed.compile: torch cannot compile without {missing}")
    compiling = CompileConfig(enable=distributed.compile, components=["model"])
    if not ranks.wraps:
        if checkpointing is not None:
            checkpointing.build().apply(model)
        if distributed.compile:
            apply_compile(model, compile_config=compiling, parallel_dims=ranks.dims)
        return [model], None
    low = distributed.precision == "bf16" or dtype == torch.bfloat16
    how = {
        "parallel_dims": ranks.dims,
        "training": TrainingConfig(
            dtype=str(dtype).removeprefix("torch."),
            mixed_precision_param="bfloat16" if low else "float32",
            enable_cpu_offload=distributed.enable_cpu_offload,
        ),
        "parallelism": ranks.parallelism,
        "compile_config": compiling,
        "ac_config": checkpointing,
        "dump_folder": "",
    }
    pipeline = None
    if ranks.degrees.pipeline > 1:
        pipeline = Pipeline(model, spec, how, ranks, torch.bfloat16 if low else dtype)
        parts = pipeline.parts
    else:
        parts = [spec.parallelize_fn(model, **how)]
    if ranks.device.type == "cpu":
        for part in parts:
            cpu.sum_gradients(part)
    return parts, pipeline


def _weight_only(sharding: Any) -> Any:
    """The head's weight stays sharded over the vocabulary; what goes in and out is plain."""
    return None if sharding is None else type(sharding)(state_shardings=sharding.state_shardings)


def _skip_padding(model: Any, token: int | None, ranks: Ranks) -> None:
    """Give the padding token's embedding no gradient, as in transformers (its row is zeros, and a
    norm's gradient at zero is enormous)."""
    embeddings = model.tok_embeddings
    if token is None or embeddings is None:
        return
    rows = -(-embeddings.num_embeddings // ranks.degrees.tensor)
    mesh = ranks.mesh("tp")
    first = 0 if mesh is None else rows * mesh.get_local_rank()
    if first <= token < first + rows:
        embeddings.padding_idx = token - first


def _share_rope(model: Any) -> None:
    """Keep one table of rotary embeddings for all layers: TorchTitan keeps one for each."""
    tables = [layer.attention.rope for layer in model.layers.values()]
    for rope in tables[1:]:
        rope.cache = tables[0].cache
