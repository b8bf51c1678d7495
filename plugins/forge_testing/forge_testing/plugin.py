"""Fixtures for tests of plugins. pytest loads this module wherever the kernel is installed.

It costs next to nothing: whatever a fixture needs is imported when the fixture is used.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forge_core import Forge
    from forge_testing.command import CommandResult
    from forge_testing.distributions import FakeSite
    from forge_testing.runs import Run

TINY_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
"""Alphabet of ``tiny_model``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of a conformance suite the suite's time limit, unless it has one."""
    if "forge_testing.conformance.suite" not in sys.modules:
        return
    from forge_testing.conformance.suite import Suite

    for item in items:
        owner = getattr(item, "cls", None)
        if owner is None or not issubclass(owner, Suite):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(owner.time_limit))


@pytest.fixture
def forge_app() -> Callable[..., Forge]:
    """``forge_app(*plugins, disabled=())``: a fresh app with these plugins alone."""
    from forge_core import Forge

    def make(*plugins: object, disabled: Collection[str] = ()) -> Forge:
        return Forge(plugins=plugins, discover=False, disabled=disabled)

    return make


@pytest.fixture
def fake_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """``fake_distribution(name, source, ...)`` installs a distribution for this test.

    See ``forge_testing.distributions.FakeSite``. Apps of this process find it, and those of
    ``run_forge_process``.
    """
    from forge_testing.distributions import FakeSite, forget_modules

    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield FakeSite(folder)
    forget_modules(folder)


@pytest.fixture
def run_forge() -> Callable[..., CommandResult]:
    """``run_forge(*arguments, app=None)``: the command in this process.

    See ``forge_testing.command.run_in_process``.
    """
    from forge_testing.command import run_in_process

    return run_in_process


@pytest.fixture
def run_forge_process(tmp_path: Path) -> Callable[..., CommandResult]:
    """``run_forge_process(*arguments, cwd=tmp_path, environ=None, timeout=300)``: as a process.

    See ``forge_testing.command.run_as_process``.
    """
    from forge_testing.command import run_as_process

    def run(
        *arguments: str,
        cwd: Path = tmp_path,
        environ: Mapping[str, str] | None = None,
        timeout: float = 300,
    ) -> CommandResult:
        return run_as_process(
            *arguments,
            cwd=cwd,
            python_path=[tmp_path / "site-packages"],
            environ=environ,
            timeout=timeout,
        )

    return run


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """``write_config(config, name="small.yaml")``: the path of a YAML file with this config."""
    from forge_testing import runs

    def write(config: Mapping[str, Any], name: str = "small.yaml") -> Path:
        return runs.write_config(config, tmp_path / name)

    return write


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """``runs(config, *arguments, name="run")``: ``forge run`` as a process, in a folder ``name``.

    See ``forge_testing.runs.Run``. What is left of them at the end of the test is killed.
    """
    from forge_testing.runs import Run

    started: list[Run] = []

    def start(config: Mapping[str, Any], *arguments: str, name: str = "run") -> Run:
        started.append(Run(tmp_path / name, config, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.kill()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a Qwen3 model of two layers, made from a seed, with a character tokenizer.

    About 25 thousand parameters, vocabulary of printable ASCII, window of 256 tokens. Do not write
    into it: the whole session shares it.
    """
    from forge_core import ModelSection
    from forge_models.folder import materialize
    from forge_testing.shapes import tiny_shape

    config = tiny_shape(max_position_embeddings=256)
    init = {"architecture": "qwen3", "config": config, "characters": TINY_CHARACTERS}
    model = ModelSection.model_validate({"init": init})
    return materialize(model, tmp_path_factory.mktemp("tiny_model"), seed=0)


@pytest.fixture(scope="session")
def tiny_chat_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_model`` with a chat template: ``<user>hi;<assistant>``."""
    from forge_models.folder import load_model, load_tokenizer

    folder = tmp_path_factory.mktemp("tiny_chat_model") / "model"
    load_model(tiny_model).save_pretrained(folder)
    tokenizer = load_tokenizer(tiny_model)
    messages = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    tokenizer.chat_template = messages + "{% if add_generation_prompt %}<assistant>{% endif %}"
    tokenizer.save_pretrained(folder)
    return folder
