"""Degrees: what is left is filled in, and what cannot work is refused with its arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from forge_core import DistributedSection, ModelSection, UsageError
from forge_testing.context import bare_context
from forge_testing.policies import policy_init
from forge_titan.degrees import Degrees, check_degrees, resolve_degrees


@pytest.mark.parametrize(
    ("section", "ranks", "expected"),
    [
        ({}, 1, Degrees()),
        ({}, 2, Degrees(shard=2)),
        ({"strategy": "fsdp"}, 4, Degrees(shard=4)),
        ({"strategy": "ddp"}, 4, Degrees(replicate=4)),
        ({"strategy": "none"}, 1, Degrees()),
        ({"strategy": "none", "tensor_parallel_degree": 2}, 2, Degrees(tensor=2)),
        ({"strategy": "ddp", "tensor_parallel_degree": 2}, 4, Degrees(replicate=2, tensor=2)),
        ({"data_parallel_replicate_degree": 2}, 4, Degrees(replicate=2, shard=2)),
        (
            {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2},
            8,
            Degrees(shard=2, tensor=2, pipeline=2),
        ),
        (
            {"context_parallel_degree": 2, "expert_parallel_degree": 4},
            4,
            Degrees(shard=2, context=2, expert=4),
        ),
    ],
)
def test_what_is_left_is_filled_in(section: dict[str, Any], ranks: int, expected: Degrees) -> None:
    assert resolve_degrees(DistributedSection(**section), ranks) == expected


@pytest.mark.parametrize(
    ("section", "ranks", "message"),
    [
        (
            {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},
            2,
            r"2 \(shard\) x 2 \(tensor\) = 4 ranks, but trainer.procs is 2",
        ),
        (
            {"tensor_parallel_degree": 3},
            4,
            r"3 \(tensor\) = 3 does not divide the 4 ranks of trainer.procs",
        ),
        (
            {"strategy": "none"},
            2,
            r"1 = 1 rank, but trainer.procs is 2; distributed.strategy=fsdp",
        ),
        (
            {"data_parallel_shard_degree": 4, "expert_parallel_degree": 3},
            4,
            r"4 x 1 x 1 = 4, which 3 does not divide",
        ),
    ],
)
def test_degrees_that_do_not_multiply_to_the_ranks(
    section: dict[str, Any], ranks: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        resolve_degrees(DistributedSection(**section), ranks)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "ranks", "message"),
    [
        ({"tensor_parallel_degree": 3}, 3, "3 does not divide the model's 4 query heads"),
        ({"tensor_parallel_degree": 4}, 4, "4 does not divide the model's 2 key and value heads"),
        ({"pipeline_parallel_degree": 4}, 4, r"4 ranks x 1 .* = 4 stages, but the model has 2"),
        (
            {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Interleaved1F1B"},
            2,
            r"2 ranks x 2 .* = 4 stages",
        ),
        (
            {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1f1b"},
            2,
            r"no schedule '1f1b'; did you mean 1F1B\?",
        ),
        ({"expert_parallel_degree": 2}, 2, "dense model without experts"),
        (
            {"context_parallel_degree": 2, "pipeline_parallel_degree": 2},
            4,
            "2 together with pipeline_parallel_degree 2",
        ),
    ],
)
def test_a_model_that_cannot_be_shared_out_so(
    section: dict[str, Any], ranks: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_degrees(_context(section, ranks))


def test_tied_weights_and_a_pipeline() -> None:
    with pytest.raises(UsageError, match="ties its embeddings to its head"):
        check_degrees(_context({"pipeline_parallel_degree": 2}, 2, tie_word_embeddings=True))


def test_a_model_that_is_not_there_yet_is_checked_when_it_is() -> None:
    context = bare_context(distributed=DistributedSection(tensor_parallel_degree=3), world_size=3)
    assert check_degrees(context) == Degrees(tensor=3)


def _context(section: dict[str, Any], ranks: int, **config: Any) -> Any:
    init = policy_init(**{"tie_word_embeddings": False, **config})
    return bare_context(
        model=ModelSection(init=init),
        distributed=DistributedSection(**section),
        world_size=ranks,
    )
