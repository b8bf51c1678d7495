"""A checkpoint's state is read as numbers: what is hidden in its pickles does not run."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from forge_core import DataError
from forge_titan.safe_state import SafePlanner, SafeReader

STATE = {"optimizer": {"lr": 0.5, "betas": (0.9, 0.95), "step": torch.ones(3)}, "epoch": 7}


class Code:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save(STATE, checkpoint_id=tmp_path / "state", no_dist=True)
    return tmp_path / "state"


def test_a_state_comes_back(checkpoint: Path) -> None:
    blank = {"optimizer": {"lr": 0.0, "betas": (0.0, 0.0), "step": torch.zeros(3)}, "epoch": 0}
    load(blank, storage_reader=SafeReader(checkpoint), planner=SafePlanner(), no_dist=True)
    assert torch.equal(blank["optimizer"].pop("step"), torch.ones(3))
    assert blank == {"optimizer": {"lr": 0.5, "betas": (0.9, 0.95)}, "epoch": 7}


def test_code_in_the_metadata_does_not_run(checkpoint: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Code(marker)))
    with pytest.raises(DataError, match=r"\.metadata: cannot be read: it asks for "):
        SafeReader(checkpoint).read_metadata()
    assert not marker.exists()
    with pytest.raises(AttributeError):
        FileSystemReader(checkpoint).read_metadata()
    assert marker.exists(), "torch's own reader runs it"


@pytest.mark.parametrize(
    "name",
    [b"ctorch.distributed.checkpoint.metadata\nos.system\n", b"ctorch\nload\n", b"cos\nabort\n"],
)
def test_no_way_round_by_name(checkpoint: Path, name: bytes) -> None:
    (checkpoint / ".metadata").write_bytes(b"\x80\x04" + name + b".")
    with pytest.raises(DataError, match="which is not read"):
        SafeReader(checkpoint).read_metadata()


def test_code_beside_the_tensors_does_not_run(tmp_path: Path) -> None:
    marker, value = tmp_path / "ran", io.BytesIO()
    torch.save(Code(marker), value)
    value.seek(0)
    index = MetadataIndex("scheduler.epoch")
    item = ReadItem(LoadItemType.BYTE_IO, index, torch.Size(), index, torch.Size(), torch.Size())
    with pytest.raises(DataError, match=r"scheduler\.epoch is damaged or holds more than numbers"):
        SafePlanner().load_bytes(item, value)
    assert not marker.exists()
