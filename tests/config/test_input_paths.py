"""Where a relative path in a config is looked up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forge_local.plugin
from forge_core import (
    DatasetComponent,
    Forge,
    InputPath,
    Preset,
    Provenance,
    Settings,
    Task,
    hookimpl,
)
from forge_core.config.effective import to_yaml
from forge_core.config.resolve import resolve

from .conftest import World

Write = Callable[[str, str], Path]


class RowsSettings(Settings):
    path: InputPath
    more: InputPath | None = None
    name: str = "train.txt"


class Rows:
    @hookimpl
    def forge_datasets(self) -> Any:
        yield DatasetComponent(
            name="rows",
            settings=RowsSettings,
            build=lambda settings: [Task(id="1", prompt=settings.path.read_text())],
            summary="a test's",
        )


@pytest.fixture
def read() -> Callable[..., tuple[dict[str, Any], dict[str, Provenance]]]:
    """``read(source, *overrides, **environ)``: the dataset's section and its provenance."""
    catalog = Forge([forge_local.plugin, World(), Rows()], discover=False).plugins.catalog

    def call(source: Any, *overrides: str, **environ: str) -> Any:
        config = resolve(catalog, source, overrides, environ=environ)
        # None of the components that a run would need is installed here.
        return config.tree["dataset"], dict(config.provenance)

    return call


def test_a_path_is_relative_to_the_file_that_it_stands_in(
    read: Any, write: Write, tmp_path: Path
) -> None:
    path = write("configs/mine.yaml", "dataset: {use: rows, path: data/train.txt, more: ../b}")
    section, provenance = read(path)
    assert section["path"] == str(tmp_path / "configs" / "data" / "train.txt")
    assert section["more"] == str(tmp_path / "b")
    assert section["name"] == "train.txt"
    assert provenance["dataset.path"].value == section["path"]
    assert provenance["dataset.path"].where.endswith("configs/mine.yaml:1")


def test_each_file_has_its_own_folder(read: Any, write: Write, tmp_path: Path) -> None:
    write("base/base.yaml", "dataset: {use: rows, path: train.txt}")
    path = write("top/top.yaml", "extends: ../base/base.yaml\ndataset: {more: more.txt}")
    section, _ = read(path)
    assert section["path"] == str(tmp_path / "base" / "train.txt")
    assert section["more"] == str(tmp_path / "top" / "more.txt")


@pytest.mark.parametrize("given", ["argument", "variable", "mapping"])
def test_what_is_typed_is_relative_to_the_working_directory(
    read: Any, write: Write, tmp_path: Path, given: str
) -> None:
    source: Any = write("configs/mine.yaml", "dataset: {use: rows, path: train.txt}")
    if given == "argument":
        section, _ = read(source, "dataset.path=other.txt")
    elif given == "variable":
        section, _ = read(source, FORGE_DATASET__PATH="other.txt")
    else:
        section, _ = read({"dataset": {"use": "rows", "path": "other.txt"}})
    assert section["path"] == str(tmp_path / "other.txt")


def test_a_presets_paths_are_those_of_the_person_who_uses_it(write: Write, tmp_path: Path) -> None:
    preset = write("package/mine.yaml", "dataset: {use: rows, path: train.txt}")
    presets = [Preset(name="mine", path=tmp_path / preset, summary="a test's")]
    app = Forge([forge_local.plugin, World(presets), Rows()], discover=False)
    config = resolve(app.plugins.catalog, "mine", environ={})
    assert config.tree["dataset"]["path"] == str(tmp_path / "train.txt")


def test_absolute_paths_and_homes_stay(read: Any, write: Write) -> None:
    path = write("configs/mine.yaml", "dataset: {use: rows, path: /data/a.txt, more: ~/b.txt}")
    section, _ = read(path)
    assert section["path"] == "/data/a.txt"
    assert section["more"] == str(Path.home() / "b.txt")


def test_what_a_run_records_is_read_from_anywhere(read: Any, write: Write, tmp_path: Path) -> None:
    section, _ = read(write("configs/mine.yaml", "dataset: {use: rows, path: train.txt}"))
    again, _ = read(write("runs/one/config.yaml", to_yaml({"dataset": section})))
    assert again == section
