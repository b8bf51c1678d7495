"""What a failed run says: one child of ForgeError that names what failed, and what it leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    DataError,
    Forge,
    ForgeError,
    RunFailed,
    Task,
    UsageError,
    hookimpl,
)
from forge_core.command import forge_command
from forge_testing.context import component
from forge_testing.runs import small_config


class Acme:
    """A plugin with one component called ``mine``."""

    def __init__(self, hook: str, build: Callable[[Any, Any], Any]) -> None:
        mine = component(hook, build)
        setattr(self, hook, hookimpl(lambda: [mine]))


class Environment:
    """One turn whose parts are handed over."""

    max_turns = 2

    def __init__(self, respond: Callable[[str, str], Any] | None) -> None:
        self._respond = respond

    async def start(self, task: Any, seed: int) -> Any:
        class Interaction:
            prompt = task.prompt

        interaction = Interaction()
        if self._respond is not None:
            interaction.respond = self._respond  # type: ignore[attr-defined]
        return interaction


@pytest.fixture
def fails(tmp_path: Path) -> Callable[..., tuple[ForgeError, list[Path]]]:
    """``fails(plugin, **sections)``: the error of a run, and the run folders that it leaves."""

    def run(*plugins: object, **sections: Any) -> tuple[ForgeError, list[Path]]:
        sections.setdefault("trackers", {"console": None})
        output = tmp_path / "runs"
        config = small_config(checkpointing={"output_dir": str(output)}, **sections)
        with pytest.raises(ForgeError) as caught:
            Forge(plugins=plugins).run(config)
        return caught.value, list(output.iterdir()) if output.exists() else []

    return run


def _raises(completion: str, finish_reason: str) -> None:
    raise OSError("no sandbox")


async def _number(completion: str, finish_reason: str) -> int:
    return 3


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (_raises, "none was answered: environment 'mine' (plugin Acme): respond failed (task '"),
        (_raises, ", turn 1): OSError: no sandbox"),
        (lambda *_: None, "respond must be a coroutine: write `async def` (task '"),
        (_number, "respond returned a int; expected a Response, text or None (task '"),
        (None, "start returned a Interaction; expected an object with prompt and respond (task '"),
    ],
)
def test_an_environment_that_misbehaves_is_named(fails: Any, respond: Any, expected: str) -> None:
    plugin = Acme("forge_environments", lambda *_: Environment(respond))
    error, _ = fails(plugin, environment={"use": "mine"}, sampling={"max_tokens": 40})
    assert isinstance(error, RunFailed)
    assert expected in str(error)
    assert "environment 'mine' (plugin Acme): " in str(error)


def test_a_generator_that_raises_is_named_with_its_replica(fails: Any) -> None:
    from forge_torch.plugin import forge_generators

    (torch,) = [each for each in forge_generators() if each.name == "torch"]

    def build(settings: Any, context: Any) -> Any:
        generator = torch.build(torch.settings(), context)

        async def generate(*_: Any) -> Any:
            raise ConnectionError("remote end closed connection")

        generator.generate = generate
        return generator

    error, _ = fails(Acme("forge_generators", build), generator={"use": "mine"})
    assert str(error) == (
        "recipe grpo, after step 0: ConnectionError: remote end closed connection "
        "(in generate() on replica 0 of generator mine)"
    )


class Tasks:
    """A dataset that cannot be read any more from some moment on, but for its first item."""

    def __init__(self, is_broken: bool) -> None:
        self.is_broken = is_broken

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        self.is_broken = True

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        if self.is_broken and index:
            raise DataError("data.jsonl:6: no answer")
        return Task(str(index), "1+1=", answer="2", response="2")


def sft(**sections: Any) -> dict[str, Any]:
    training = {"steps": 50, "batch_size": 4, "learning_rate": 0.001}
    return {"recipe": {"use": "sft"}, "training": training, "dataset": {"use": "mine"}} | sections


def test_bad_data_before_the_first_step_leaves_no_folder(fails: Any) -> None:
    error, folders = fails(Acme("forge_datasets", lambda *_: Tasks(is_broken=True)), **sft())
    assert isinstance(error, DataError)
    assert (error.exit_code, folders) == (2, [])


def test_bad_data_in_the_middle_is_a_run_that_failed(fails: Any) -> None:
    tasks = Tasks(is_broken=False)
    error, (folder,) = fails(Acme("forge_datasets", lambda *_: tasks), tasks, **sft())
    assert isinstance(error, RunFailed)
    assert error.exit_code == 1
    assert "data.jsonl:6: no answer" in str(error)
    assert '"exit_code": 1' in (folder / "summary.json").read_text()


def test_a_tracker_that_cannot_be_built_starts_nothing(fails: Any) -> None:
    def build(settings: Any, context: Any) -> Any:
        raise UsageError("tracker mine: log in first")

    error, folders = fails(Acme("forge_trackers", build), trackers={"console": None, "mine": {}})
    assert str(error) == "tracker mine: log in first"
    assert folders == []


def test_a_failure_in_a_script_is_one_traceback() -> None:
    program = "from forge_run.event_loop import run_to_end\nasync def f(): 1 / 0\nrun_to_end(f())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ZeroDivisionError" in done.stderr
    assert "During handling" not in done.stderr
    assert "no running event loop" not in done.stderr


@pytest.mark.parametrize("on_path", [True, False])
def test_a_printed_command_works_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_path: bool
) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{scripts}:/usr/bin:/bin" if on_path else "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    command = forge_command()
    assert (command == "forge") == (on_path and (Path(scripts) / "forge").exists())
    done = subprocess.run(f"{command} --version", shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("forge, version")
