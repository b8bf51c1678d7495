"""Settings of the generator, the trainer and the transports."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from forge_core import Settings


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


class MemorySettings(Settings):
    """Memory of one process."""

    dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="type that weights travel in, where the generator keeps another than the "
        "trainer; null: the trainer's",
    )


class ShmSettings(MemorySettings):
    """Shared memory of one host."""

    folder: Path = Field(
        Path("/dev/shm"), description="memory file system in which the channel's segments are kept"
    )


class CudaIpcSettings(ShmSettings):
    """Device memory, shared with the processes of one host."""

    folder: Path = Field(
        Path("/dev/shm"), description="memory file system in which the memory's handles are kept"
    )
