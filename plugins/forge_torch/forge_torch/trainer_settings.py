"""Settings of the trainer ``torch``, and the component. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from forge_core.component import BuildContext, Component, Settings
from forge_core.errors import UsageError

if TYPE_CHECKING:
    from forge_torch.trainer.trainer import TorchTrainer


class TorchTrainerSettings(Settings):
    """Training of a Hugging Face causal language model in one process."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model is trained; auto: cuda if there is one"
    )
    packed: bool = Field(
        True,
        description="lay sequences end to end; false: pad them to one length. Both give the same "
        "numbers; a model that cannot be packed is padded anyway, with a warning",
    )
    max_tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        description="tokens in one forward pass at most (a longer sequence goes alone); splits the "
        "recipe's micro-batches further to save memory and changes no number. null: no bound",
    )
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass instead of keeping them"
    )


ONE_PROCESS = {
    "strategy": (None, "none"),
    "data_parallel_replicate_degree": (1,),
    "data_parallel_shard_degree": (-1, 1),
    "tensor_parallel_degree": (1,),
    "pipeline_parallel_degree": (1,),
    "context_parallel_degree": (1,),
    "expert_parallel_degree": (1,),
    "compile": (False,),
    "activation_checkpoint": ("none",),
    "enable_cpu_offload": (False,),
}
"""What this trainer can do of the ``distributed`` section."""


def check_trainer(settings: TorchTrainerSettings, context: BuildContext) -> None:
    """One process, and nothing of what is for several.

    Raises:
        UsageError: names the key.
    """
    if context.world_size > 1:
        raise UsageError(
            f"trainer.procs: trainer torch runs in one process, not {context.world_size}; "
            "trainer titan runs in several"
        )
    for key, possible in ONE_PROCESS.items():
        value = getattr(context.distributed, key)
        if value not in possible:
            instead = "; trainer titan does"
            if key == "activation_checkpoint":
                instead = " (its own way is trainer.gradient_checkpointing=true)" + instead
            raise UsageError(
                f"distributed.{key}: trainer torch runs in one process and does not do "
                f"{value!r}{instead}"
            )


def build_trainer(settings: TorchTrainerSettings, context: BuildContext) -> TorchTrainer:
    """Load ``context.model.path`` and make the trainer.

    Raises:
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded.
    """
    from forge_torch.trainer.trainer import TorchTrainer

    check_trainer(settings, context)
    return TorchTrainer(settings, context)


TRAINER: Component[TorchTrainer] = Component(
    name="torch",
    settings=TorchTrainerSettings,
    build=build_trainer,
    check=check_trainer,
    summary="Hugging Face causal language models in one process, on CPU or CUDA",
)
