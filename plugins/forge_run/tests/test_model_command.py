"""``forge model``: what it lists, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from forge_core import ModelMaker, UsageError, hookimpl
from forge_run import plugin


def whole(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").touch()


def half(folder: Path) -> None:
    (folder / "config.json").touch()
    raise UsageError("the weights are in package acme")


@pytest.fixture
def app(forge_app):
    def make(*makers: object):
        ship = (SimpleNamespace(forge_models=hookimpl(lambda m=m: [m])) for m in makers)
        return forge_app(plugin, *ship)

    return make


def maker(name: str, make: Callable[[Path], None] = whole) -> ModelMaker:
    return ModelMaker(name=name, make=make, summary="a model")


def test_models_are_listed(app, run_forge):
    result = run_forge("model", app=app(maker("mine"), maker("yours")))
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["model", "mine", "yours"]


@pytest.mark.parametrize("folder", [None, "here", "deep/down"])
def test_a_folder_is_made(app, run_forge, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    result = run_forge("model", "mine", *([folder] if folder else []), app=app(maker("mine")))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{folder or 'models/mine'}\n"
    made = tmp_path / result.stdout.strip()
    assert (made / "config.json").is_file()
    assert [path.name for path in made.parent.iterdir()] == [made.name]


@pytest.mark.parametrize(
    ("arguments", "makers", "error"),
    [
        (["mime"], [maker("mine")], "no plugin ships a model called 'mime'; did you mean 'mine'?"),
        (["mine"], [], "(there are: none)"),
        (["mine", "."], [maker("mine")], ". exists already"),
        (["mine"], [maker("mine", half)], "the weights are in package acme"),
        (["mine"], [maker("mine", lambda folder: None)], "config.json is missing"),
        (["mine"], [maker("mine"), maker("mine")], "model 'mine' is provided twice"),
        (["mine"], ["mine"], "forge_models yielded a str, not a ModelMaker"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_left(
    app, run_forge, tmp_path, monkeypatch, arguments, makers, error
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").touch()
    result = run_forge("model", *arguments, app=app(*makers))
    assert result.exit_code == 2
    assert error in result.stderr
    assert not any((tmp_path / "models").glob("*"))
    assert not any((tmp_path / "models").glob(".*"))
