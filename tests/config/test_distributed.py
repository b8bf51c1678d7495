"""How a trainer spreads: TorchTitan's degrees, and the short form for the usual ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forge_core import ConfigError, RunConfig

Read = Callable[..., RunConfig]


def test_what_a_trainer_starts_with(read: Read) -> None:
    distributed = read(None).stages[0].distributed
    assert distributed.strategy is None
    assert distributed.data_parallel_shard_degree == -1
    assert distributed.activation_checkpoint == "none"


def test_degrees_and_memory_savers_are_read(read: Read) -> None:
    distributed = (
        read(
            {
                "distributed": {
                    "data_parallel_replicate_degree": 2,
                    "data_parallel_shard_degree": 4,
                    "tensor_parallel_degree": 8,
                    "pipeline_parallel_degree": 2,
                    "pipeline_parallel_schedule": "GPipe",
                    "context_parallel_degree": 2,
                    "expert_parallel_degree": 4,
                    "compile": True,
                    "activation_checkpoint": "selective",
                    "enable_cpu_offload": True,
                }
            }
        )
        .stages[0]
        .distributed
    )
    assert distributed.tensor_parallel_degree == 8
    assert distributed.pipeline_parallel_schedule == "GPipe"
    assert distributed.activation_checkpoint == "selective"


def test_a_degree_of_nothing_is_refused(read: Read) -> None:
    with pytest.raises(ConfigError, match="data_parallel_shard_degree: 1 turns it off"):
        read(None, "distributed.data_parallel_shard_degree=0")


@pytest.mark.parametrize(
    "degree", ["data_parallel_shard_degree=2", "data_parallel_replicate_degree=2"]
)
def test_the_short_form_and_a_degree_are_refused_together(read: Read, degree: str) -> None:
    with pytest.raises(ConfigError, match="fsdp sets the data-parallel degrees"):
        read(None, "distributed.strategy=fsdp", f"distributed.{degree}")
