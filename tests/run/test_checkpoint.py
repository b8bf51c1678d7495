"""Checkpoints are complete or not there, and damage is found before it is used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forge_core.errors import DataError
from forge_core.run.checkpoint import CheckpointStore, RunState


def state(step: int, *, done: bool = False) -> RunState:
    algorithm, internal, gauss = random.Random(step).getstate()
    return RunState(
        step=step,
        stage="only",
        stage_step=step,
        stage_done=done,
        version=step,
        position=8 * step,
        python_rng=[algorithm, list(internal), gauss],
        extra={"seen": step},
    )


def save(store: CheckpointStore, step: int, *, done: bool = False) -> Path:
    draft = store.begin(step)
    (draft / "model.safetensors").write_bytes(bytes(range(256)) * step)
    (draft / "trainer").mkdir()
    (draft / "trainer" / "optimizer.pt").write_bytes(b"optimizer")
    return store.commit(draft, state(step, done=done))


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    place = save(store, 3)
    assert place.name == "step_3"
    assert store.steps() == [3]
    assert store.state(3) == state(3)
    assert store.verify(3) == place


@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_damage_is_found(tmp_path: Path, how: str) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    victim = save(store, 1) / "trainer" / "optimizer.pt"
    if how == "changed":
        victim.write_bytes(b"optimizes")
    elif how == "cut":
        victim.write_bytes(b"opti")
    else:
        victim.unlink()
    with pytest.raises(DataError, match=r"step_1: trainer/optimizer\.pt is (missing|damaged)"):
        store.verify(1)


def test_a_draft_is_no_checkpoint(tmp_path: Path) -> None:
    """What a killed process leaves half written is neither listed nor in the way."""
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (store.begin(2) / "model.safetensors").write_bytes(b"half")
    assert store.steps() == [1]
    save(store, 2)
    assert store.steps() == [1, 2]
    assert (store.path(2) / "model.safetensors").read_bytes() != b"half"


def test_old_ones_go_but_the_last_of_a_stage_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        save(store, step, done=step == 2)
    assert store.steps() == [2, 4, 5]
