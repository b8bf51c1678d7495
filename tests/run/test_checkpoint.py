"""Checkpoints are complete or not there, and damage is found before it is used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from forge_core import CheckpointingSection, DataError, RunFailed
from forge_run.checkpoint import CheckpointStore, RunState, SaveTimes, write_state


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
        recipe_state={"seen": step},
    )


def save(store: CheckpointStore, step: int, *, done: bool = False) -> Path:
    with store.draft(step) as draft:
        (draft / "model.safetensors").write_bytes(bytes(range(256)) * step)
        (draft / "trainer").mkdir()
        (draft / "trainer" / "optimizer.pt").write_bytes(b"optimizer")
        write_state(draft, state(step, done=done))
    return store.path(step)


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


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": ', '{"files": {"state.json": 3}}', '{"filez": {}}', None]
)
def test_a_damaged_manifest_is_said_in_one_line(tmp_path: Path, text: str | None) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    manifest = save(store, 1) / "manifest.json"
    if text is None:
        manifest.write_bytes(b"\xff\xfe\x00")
    else:
        manifest.write_text(text)
    for model_only in (False, True):
        with pytest.raises(DataError, match=r"step_1: manifest\.json is (missing or )?damaged"):
            store.verify(1, model_only=model_only)


def test_a_damaged_state_is_said_in_one_line(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    (save(store, 1) / "state.json").write_text('{"step": 1}')
    with pytest.raises(DataError, match=r"step_1/state\.json: cannot be read"):
        store.state(1)


def test_a_model_can_be_read_without_its_trainers_state(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    place = save(store, 1)
    (place / "trainer" / "optimizer.pt").unlink()
    assert store.verify(1, model_only=True) == place
    (place / "model.safetensors").write_bytes(bytes(256))
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        store.verify(1, model_only=True)


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    for step in (1, 2, 3):
        save(store, step)
    assert store.newest_whole() == (3, {})
    (store.path(3) / "state.json").write_text("")
    (store.path(2) / "trainer" / "optimizer.pt").unlink()
    newest, damaged = store.newest_whole()
    assert newest == 1
    assert list(damaged) == [3, 2]
    assert store.newest_whole(model_only=True)[0] == 2
    store.set_aside(3)
    assert store.steps() == [1, 2]
    assert (tmp_path / "damaged_step_3").is_dir()
    (store.path(1) / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"no checkpoint is whole; .*step_2: .*; .*step_1: "):
        store.newest_whole()


def test_a_draft_is_no_checkpoint(tmp_path: Path) -> None:
    """What a killed process leaves half written is neither listed nor left to lie."""
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    draft = tmp_path / ".step_2.draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"half")
    assert store.steps() == [1]
    save(store, 3)
    assert store.steps() == [1, 3]
    assert not draft.exists()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)

    def fill() -> None:
        with store.draft(2) as draft:
            (draft / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(RunFailed, match=r"^cannot write .*step_2 \([\d,]+ MiB free there\): OSErr"):
        fill()
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_old_ones_go_but_the_last_of_a_stage_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        save(store, step, done=step == 2)
    assert store.steps() == [2, 4, 5]


def test_one_that_cannot_be_read_is_not_dropped(tmp_path: Path) -> None:
    """It may be the last of a stage."""
    store = CheckpointStore(tmp_path, keep=1)
    (save(store, 1) / "state.json").write_text("")
    for step in (2, 3):
        save(store, step)
    assert store.steps() == [1, 3]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, [3, 5, 8]),
        ({"save_interval_minutes": None}, []),
        ({"save_interval_minutes": 1}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"save_interval": 4}, [3, 4, 6, 8]),
        ({"save_interval": 2, "save_interval_minutes": None}, [2, 4, 6, 8]),
    ],
)
def test_when_checkpoints_are_written(section: dict[str, Any], expected: list[int]) -> None:
    """Steps take 4 minutes, but the fifth takes 6; writing takes 1."""
    now = 0.0
    times = SaveTimes(CheckpointingSection(**section), clock=lambda: now)
    saved = []
    for step in range(1, 9):
        now += 360 if step == 5 else 240
        if times.due(step):
            now += 60
            times.saved()
            saved.append(step)
    assert saved == expected
