"""Which targets a rank of context parallelism predicts."""

from __future__ import annotations

import torch

from forge_titan.context_parallel import local_targets


def test_each_wanted_place_is_held_by_one_rank() -> None:
    places = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    wanted = torch.tensor([3, 4, 9, 11, 17])
    found: list[int] = []
    for part in places.split(8):
        indices, rows = local_targets(part, wanted)
        assert torch.equal(part[rows], wanted[indices])
        found += indices.tolist()
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_nothing_wanted_or_nothing_held_is_no_trouble() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for places, wanted in ((torch.arange(4), none), (torch.arange(8, 12), torch.tensor([1, 2]))):
        indices, rows = local_targets(places, wanted)
        assert indices.numel() == rows.numel() == 0
