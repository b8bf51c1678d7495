"""Settings of the trainer ``titan``, and the component. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import BuildContext, Location, PluginError, Settings, TrainerComponent
from forge_local.devices import computes_on_cuda
from forge_tensors.precision import bfloat16_weights
from forge_titan.degrees import check_degrees
from forge_titan.memory import trainer_memory
from forge_titan.supported import check_model

TESTED = "0.3.0"
"""The TorchTitan release that this plugin was written against."""


class TitanTrainerSettings(Settings):
    """Training of a Hugging Face model with TorchTitan; ``distributed`` says how it spreads."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model is trained; auto: cuda if there is one"
    )
    flavor: str | None = Field(
        None,
        description="TorchTitan's name of the size that the model must have, such as 8B; null: any",
    )
    max_tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        description="tokens in one forward pass of a rank at most (a longer sequence goes alone); "
        "splits the recipe's micro-batches further to save memory and changes no number. null: no "
        "bound",
    )


def check_trainer(settings: TitanTrainerSettings, context: BuildContext) -> None:
    """Refuse before a start what cannot be built.

    Raises:
        PluginError: TorchTitan is not installed.
        UsageError: the degrees do not fit the ranks or the model.
        DataError: TorchTitan has no such model.
    """
    require_torchtitan()
    check_model(context.model)
    check_degrees(context)


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


TRAINER = TrainerComponent(
    name="titan",
    settings=TitanTrainerSettings,
    build="forge_titan.start:build",
    check=check_trainer,
    cautions=trainer_cautions,
    memory=trainer_memory,
    location=trainer_location,
    summary="TorchTitan: Qwen3 and Llama 3 over one or many processes, from and to Hugging Face",
)
