"""What the generator, the trainer and the transports refuse, and say of themselves, before anything
starts. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core import BuildContext, ConfigError, Location, TokenLimit, UsageError
from forge_local.devices import computes_on_cuda, visible_devices
from forge_models.rope import stored_boundaries
from forge_models.shape import model_config
from forge_tensors.precision import bfloat16_weights
from forge_torch.settings import CudaIpcSettings, TorchGeneratorSettings, TorchTrainerSettings

ONE_PROCESS = {
    "strategy": (None, "none"),
    "data_parallel_replicate_degree": (1,),
    "data_parallel_shard_degree": (-1, 1),
    "tensor_parallel_degree": (1,),
    "pipeline_parallel_degree": (1,),
    "pipeline_parallel_schedule": ("1F1B",),
    "context_parallel_degree": (1,),
    "expert_parallel_degree": (1,),
    "compile": (False,),
    "activation_checkpoint": ("none",),
    "enable_cpu_offload": (False,),
}
"""What this trainer can do of the ``distributed`` section."""


def check_generator(settings: TorchGeneratorSettings, context: BuildContext) -> None:
    """Raises:
    ConfigError: more than one process, a window that the model does not have, or weights that
        would travel in another type.
    """
    if context.world_size != 1:
        raise ConfigError(
            f"generator.procs: generator torch runs in one process, not in {context.world_size}; "
            "ask for more replicas (generator.replicas) instead"
        )
    travels = getattr(context.transport and context.transport.settings, "dtype", None)
    if travels not in (None, context.model.dtype):
        raise ConfigError(
            f"transport.dtype={travels}: generator torch keeps weights in model.dtype, "
            f"{context.model.dtype}, and takes no other; leave transport.dtype out"
        )
    config = model_config(context.model) or {}
    limit, wanted = config.get("max_position_embeddings"), settings.max_model_len
    if wanted is not None and isinstance(limit, int) and wanted > limit:
        raise ConfigError(
            f"generator.max_model_len: {wanted} is more than the {limit} positions the model knows"
        )
    check_boundaries(wanted, stored_boundaries(config))


def check_boundaries(wanted: int | None, boundaries: Sequence[int]) -> None:
    """Refuse a window over lengths with different rotary frequencies.

    Args:
        wanted: ``generator.max_model_len``.
        boundaries: of ``forge_models.rope``.

    Raises:
        ConfigError: it is longer than the first.
    """
    if boundaries and wanted is not None and wanted > boundaries[0]:
        raise ConfigError(
            f"generator.max_model_len: {wanted} is more than {boundaries[0]}; beyond that, the "
            "model's rotary frequencies (longrope) depend on the longest sequence of a batch, and "
            "generator torch samples no further"
        )


def generator_location(settings: TorchGeneratorSettings) -> Location:
    """On the device that the settings say."""
    insists = settings.device == "cuda"
    cuda = computes_on_cuda(settings.device)
    return Location(cuda=cuda, cuda_key="device" if insists else "")


def most_tokens(settings: TorchGeneratorSettings) -> TokenLimit:
    """Prompt and completion fit into the window."""
    return TokenLimit(tokens=settings.max_model_len, key="generator.max_model_len")


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
            shown = str(value).lower() if isinstance(value, bool) else value
            if key == "activation_checkpoint":
                instead = " (its own way is trainer.gradient_checkpointing=true)" + instead
            raise UsageError(
                f"distributed.{key}={shown}: trainer torch runs in one process and "
                f"does not do that{instead}"
            )


def trainer_cautions(settings: TorchTrainerSettings, context: BuildContext) -> list[str]:
    """Weights and optimizer are kept in ``model.dtype``."""
    return bfloat16_weights(context)


def trainer_location(settings: TorchTrainerSettings) -> Location:
    """On the device that the settings say."""
    insists = settings.device == "cuda"
    cuda = computes_on_cuda(settings.device)
    return Location(cuda=cuda, cuda_key="device" if insists else "")


def check_cuda_ipc(settings: CudaIpcSettings, context: BuildContext) -> None:
    """Raises:
    ConfigError: this host has no CUDA device.
    """
    if not visible_devices():
        raise ConfigError(
            "transport.use: transport 'cuda_ipc' needs a CUDA device, and there is none here; "
            "use --transport shm"
        )
