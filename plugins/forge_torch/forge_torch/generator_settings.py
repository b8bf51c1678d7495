"""Settings of the generator ``torch``, and the component. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from forge_core import BuildContext, ConfigError, GeneratorComponent, Location, Settings, TokenLimit
from forge_local.devices import computes_on_cuda
from forge_models.rope import stored_boundaries
from forge_models.shape import model_config


class TorchGeneratorSettings(Settings):
    """Continuous batched decoding of a Hugging Face model, wherever torch runs."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model runs; auto: cuda if there is one"
    )
    max_model_len: int | None = Field(
        None, ge=2, description="tokens of prompt and completion at most; null: the model's own"
    )
    max_batch_rows: int = Field(
        256,
        ge=1,
        description="completions decoded at once; more wait. Bounds the KV cache's memory",
    )


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


GENERATOR = GeneratorComponent(
    name="torch",
    settings=TorchGeneratorSettings,
    build="forge_torch.generator.generator:TorchGenerator",
    check=check_generator,
    location=generator_location,
    max_tokens=most_tokens,
    summary="continuous batched decoding of Hugging Face models on CPU or CUDA",
    default=True,
)
