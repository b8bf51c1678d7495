"""What the trainer ``titan`` refuses, warns of and says of itself before anything starts. Imports
nothing heavy."""

from __future__ import annotations

from forge_core import BuildContext, Location, PluginError, UsageError
from forge_local.devices import computes_on_cuda
from forge_tensors.precision import bfloat16_weights
from forge_titan.degrees import check_degrees
from forge_titan.settings import TitanTrainerSettings
from forge_titan.supported import check_model

TESTED = "0.3.0"
"""The TorchTitan release that this plugin was written against."""


def check_trainer(settings: TitanTrainerSettings, context: BuildContext) -> None:
    """Refuse before a start what cannot be built.

    Raises:
        PluginError: TorchTitan is not installed.
        UsageError: the degrees do not fit the ranks or the model.
        DataError: TorchTitan has no such model.
    """
    require_torchtitan()
    check_model(context.model)
    degrees = check_degrees(context)
    if context.loss is not None and degrees.tensor > 1:
        whole = {"top_logprobs", "log_softmax"} & context.loss.outputs.names
        if whole:
            raise UsageError(
                f"distributed.tensor_parallel_degree: loss {context.loss.name!r} needs "
                f"{', '.join(sorted(whole))}, and no rank has the whole vocabulary; use 1"
            )
    check_optimizer(context)


def check_optimizer(context: BuildContext) -> None:
    """Several ranks hold their weights as ``DTensor``.

    Raises:
        UsageError: the optimizer needs whole weights.
    """
    optimizer = context.optimizer
    if context.world_size > 1 and optimizer is not None and not optimizer.sharded:
        raise UsageError(
            f"training.optimizer: {optimizer.name} needs whole weights, and trainer titan with "
            f"{context.world_size} ranks (trainer.procs) gives it shards; adamw and others that "
            "change each value by itself (OptimizerComponent.sharded) take them"
        )


def trainer_cautions(settings: TitanTrainerSettings, context: BuildContext) -> list[str]:
    """Weights and optimizer are kept in ``model.dtype``."""
    return bfloat16_weights(context)


def require_torchtitan() -> None:
    """Make sure that TorchTitan is there; another release than the tested one is warned of.

    Raises:
        PluginError: it is not; names the command that fixes it.
    """
    import warnings
    from importlib import metadata

    try:
        version = metadata.version("torchtitan")
    except metadata.PackageNotFoundError:
        raise PluginError(
            f"trainer titan: TorchTitan is not installed; pip install torchtitan=={TESTED}"
        ) from None
    if version != TESTED:
        warnings.warn(
            f"trainer titan was written against torchtitan {TESTED} and this is {version}; "
            f"if it fails: pip install torchtitan=={TESTED}",
            stacklevel=2,
        )


def trainer_location(settings: TitanTrainerSettings) -> Location:
    """On the device that the settings say."""
    insists = settings.device == "cuda"
    cuda = computes_on_cuda(settings.device)
    return Location(cuda=cuda, cuda_key="device" if insists else "")
