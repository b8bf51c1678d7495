"""The checksum tells apart what is different, and nothing else."""

from __future__ import annotations

import pytest
import torch

from forge_tensors import checksum as module
from forge_tensors.checksum import checksum


def _named() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "big": torch.randn(700_003, generator=generator),
        "bf16": torch.randn(5, 3, generator=generator).bfloat16(),
        "scalar": torch.tensor(3.5),
        "bytes": torch.arange(13, dtype=torch.uint8),
        "empty": torch.empty(0, 4),
    }


def test_equal_content_gives_equal_digest_in_any_order_and_layout() -> None:
    named = _named()
    expected = checksum(named.items())
    assert checksum(reversed(list(named.items()))) == expected
    strided = {name: _strided(tensor) for name, tensor in named.items()}
    assert not strided["bf16"].is_contiguous()
    assert checksum(strided.items()) == expected


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def test_a_view_that_starts_between_words_is_read_rightly() -> None:
    data = torch.arange(64, dtype=torch.uint8)
    assert checksum([("x", data[3:40])]) == checksum([("x", data[3:40].clone())])


@pytest.mark.parametrize("index", [0, 1, 524_287, 524_288, 700_001, 700_002])
def test_one_changed_number_changes_the_digest(index: int) -> None:
    named = _named()
    before = checksum(named.items())
    named["big"][index] += 1e-3
    assert checksum(named.items()) != before


@pytest.mark.parametrize(("first", "second"), [(0, 2), (0, 1), (0, 524_288), (6, 524_296)])
def test_exchanged_numbers_change_the_digest(first: int, second: int) -> None:
    tensor = _named()["big"]
    before = checksum([("x", tensor)])
    tensor[[first, second]] = tensor[[second, first]]
    assert checksum([("x", tensor)]) != before


def test_name_type_and_shape_count() -> None:
    zeros = torch.zeros(4, 6)
    digests = {
        checksum([("x", zeros)]),
        checksum([("y", zeros)]),
        checksum([("x", zeros.view(6, 4))]),
        checksum([("x", zeros.int())]),
        checksum([("x", torch.zeros(4, 7))]),
        checksum([("x", zeros), ("y", zeros)]),
        checksum([]),
    }
    assert len(digests) == 7


def test_exchanged_tensors_change_the_digest() -> None:
    first, second = torch.ones(8), torch.zeros(8)
    assert checksum([("a", first), ("b", second)]) != checksum([("a", second), ("b", first)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_device_does_not_matter() -> None:
    named = _named()
    moved = {name: tensor.cuda() for name, tensor in named.items()}
    assert checksum(moved.items()) == checksum(named.items())


@pytest.mark.parametrize("words", [0, 1, 262_143, 262_144, 262_145, 3 * 262_144 + 7])
def test_a_gpus_way_gives_what_a_cpus_does(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers wrap around alike in any order of addition."""
    data = torch.randint(-(2**63), 2**63 - 1, (words,), generator=torch.Generator().manual_seed(0))
    expected = module._by_blocks(data)
    assert module._by_many_blocks(data) == expected
    monkeypatch.setattr(module, "_MANY", 2)  # more than one round
    module._block_multipliers.cache_clear()
    assert module._by_many_blocks(data) == expected
    module._block_multipliers.cache_clear()
