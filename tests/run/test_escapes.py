"""``sys.exit(0)`` and its like in a component are a failure of that component: named, exit code 1
(2 before the start), and never the end of the command with 0."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, Task, hookimpl
from forge_core.cli import main
from forge_testing.command import process_environ
from forge_testing.context import component
from forge_testing.runs import small_config, write_config


class Odd(BaseException):
    """No ``Exception``."""


ESCAPES = {
    "exit": lambda: SystemExit(0),
    "cancelled": asyncio.CancelledError,
    "interrupt": KeyboardInterrupt,
    "odd": lambda: Odd("very"),
    "stop": StopIteration,
}
SHOWN = {
    "exit": "SystemExit: 0",
    "cancelled": "CancelledError",
    "interrupt": "KeyboardInterrupt",
    "odd": "Odd: very",
    "stop": "StopIteration",
}


def leave(kind: str = "exit", *_: Any, **__: Any) -> Any:
    raise ESCAPES[kind]()


class Acme:
    """A plugin with one component called ``mine``, or with a hook."""

    def __init__(self, hook: str, build: Callable[[Any, Any], Any], **more: Any) -> None:
        if hook == "forge_recipes":
            more = {"requires": {"dataset", "trainer", "loss"}, **more}
        mine = component(hook, build, **more)
        setattr(self, hook, hookimpl(lambda: [mine]))


class Hook:
    def __init__(self, name: str) -> None:
        def hook() -> None:
            leave()

        setattr(self, name, hookimpl(hook))


@pytest.fixture
def forge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``forge(plugin, *arguments, **sections)``: exit code and standard error of ``forge run``."""

    def run(plugin: object, *arguments: str, **sections: Any) -> tuple[int, str]:
        sections = {"trackers": {"console": None}, **sections}
        config = small_config(checkpointing={"output_dir": str(tmp_path / "runs")}, **sections)
        file = write_config(config, tmp_path / "config.yaml")
        command = "run" if "plan" not in arguments else "plan"
        rest = [each for each in arguments if each != "plan"]
        code = main([command, str(file), *rest], app=Forge(plugins=[plugin]))
        return code, capsys.readouterr().err

    return run


class Items:
    """A dataset; item 3 leaves."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Task:
        if self.kind and index == 3:
            leave(self.kind)
        return Task(str(index), "1+1=", answer="2", response="2")


class Recipe:
    def __init__(self, plan: Any = 1) -> None:
        self._plan = plan

    def plan(self, config: Any, length: int) -> int:
        return self._plan if isinstance(self._plan, int) else leave()

    async def run(self, stage: Any) -> None:
        leave()


class Background(Recipe):
    """Something in the background leaves."""

    async def run(self, stage: Any) -> None:
        async def task() -> None:
            leave()

        self.task = asyncio.create_task(task())
        await asyncio.sleep(60)


BEFORE: dict[str, tuple[object, dict[str, Any], str]] = {
    "dataset build": (
        Acme("forge_datasets", lambda *_: leave()),
        {"dataset": {"use": "mine"}},
        "dataset 'mine' (plugin Acme): build failed: ",
    ),
    "recipe plan": (
        Acme("forge_recipes", lambda *_: Recipe(None)),
        {"recipe": {"use": "mine"}, "loss": {"use": "cross_entropy"}},
        "recipe 'mine' (plugin Acme): plan failed: ",
    ),
    "loss build": (
        Acme("forge_losses", lambda *_: leave()),
        {"loss": {"use": "mine"}},
        "loss 'mine' (plugin Acme): build failed: ",
    ),
    "generator check": (
        Acme("forge_generators", lambda *_: None, check=lambda *_: leave()),
        {"generator": {"use": "mine"}},
        "generator 'mine' (plugin Acme): check failed: ",
    ),
    "trainer cautions": (
        Acme("forge_trainers", lambda *_: None, cautions=lambda *_: leave()),
        {"trainer": {"use": "mine"}},
        "trainer 'mine' (plugin Acme): cautions failed: ",
    ),
    "hook": (Hook("forge_config_resolved"), {}, "plugin Hook: forge_config_resolved failed: "),
}


@pytest.mark.parametrize("place", BEFORE)
def test_before_the_start(forge: Any, place: str) -> None:
    plugin, sections, expected = BEFORE[place]
    code, printed = forge(plugin, "--dry-run", **sections)
    assert code == 2, printed
    assert expected in printed
    assert "SystemExit: 0" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("kind", ESCAPES)
def test_whatever_is_raised_before_the_start(forge: Any, kind: str) -> None:
    plugin = Acme("forge_losses", lambda *_: leave(kind))
    code, printed = forge(plugin, "--dry-run", loss={"use": "mine"})
    assert (code, printed) == (
        2,
        f"error: loss 'mine' (plugin Acme): build failed: {SHOWN[kind]}\n",
    )


@pytest.mark.parametrize("kind", ESCAPES)
def test_whatever_is_raised_in_a_plan(forge: Any, kind: str) -> None:
    plugin = Acme("forge_trainers", lambda *_: None, cautions=lambda *_: leave(kind))
    code, printed = forge(plugin, "plan", trainer={"use": "mine"})
    assert (code, "Traceback" in printed) == (2, False), printed
    assert f"trainer 'mine' (plugin Acme): cautions failed: {SHOWN[kind]}" in printed


def test_an_interrupt_of_a_component_where_ctrl_c_is_ignored(forge: Any) -> None:
    """As in a background job of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        plugin = Acme("forge_losses", lambda *_: leave("interrupt"))
        code, printed = forge(plugin, "--dry-run", loss={"use": "mine"})
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, SHOWN["interrupt"] in printed) == (2, True), printed


class Environment:
    max_turns = 2

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def start(self, task: Any, seed: int) -> Any:
        kind = self._kind

        class Interaction:
            prompt = task.prompt

            async def respond(self, completion: str, finish_reason: str = "stop") -> str:
                raise ESCAPES[kind]()

        return Interaction()


@pytest.mark.parametrize("kind", ESCAPES)
def test_an_environment_that_leaves(forge: Any, kind: str, tmp_path: Path) -> None:
    plugin = Acme("forge_environments", lambda *_: Environment(kind))
    code, printed = forge(plugin, environment={"use": "mine"}, sampling={"max_tokens": 40})
    assert code == 1, printed
    assert SHOWN[kind] in printed
    assert "environment" in printed
    assert "Traceback" not in printed
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert json.loads(summary.read_text())["outcome"] == "failed"


class Loss:
    def __call__(self, *_: Any) -> Any:
        leave()


def _torch(family: str, method: str) -> Callable[[Any, Any], Any]:
    """The torch component, one of whose methods leaves."""

    def build(settings: Any, context: Any) -> Any:
        from forge_torch import plugin

        found = {each.name: each for each in getattr(plugin, f"forge_{family}s")()}
        component = found["memory" if family == "transport" else "torch"]
        built = component.build(component.settings(), context)

        async def called(*_: Any, **__: Any) -> Any:
            leave()

        setattr(built, method, called)
        return built

    return build


DURING: dict[str, tuple[object, dict[str, Any], str]] = {
    "loss": (Acme("forge_losses", lambda *_: Loss()), {"loss": {"use": "mine"}}, "loss Loss"),
    "trainer": (
        Acme("forge_trainers", _torch("trainer", "train_step")),
        {"trainer": {"use": "mine"}},
        "trainer mine",
    ),
    "trainer build": (
        Acme("forge_trainers", lambda *_: leave()),
        {"trainer": {"use": "mine"}},
        "trainer mine",
    ),
    "generator": (
        Acme("forge_generators", _torch("generator", "generate")),
        {"generator": {"use": "mine"}},
        "generator mine",
    ),
    "transport build": (
        Acme("forge_transports", lambda *_: leave()),
        {"transport": {"use": "mine"}},
        "(in the build of transport 'mine' (plugin Acme))",
    ),
    "transport": (
        Acme("forge_transports", _torch("transport", "publish")),
        {"transport": {"use": "mine"}},
        "trainer torch",
    ),
    "recipe": (
        Acme("forge_recipes", lambda *_: Recipe()),
        {"recipe": {"use": "mine"}, "loss": {"use": "cross_entropy"}},
        "recipe mine",
    ),
    "background": (
        Acme("forge_recipes", lambda *_: Background()),
        {"recipe": {"use": "mine"}, "loss": {"use": "cross_entropy"}},
        "in a task in the background",
    ),
    "hook": (Hook("forge_episode_finished"), {}, "plugin Hook: forge_episode_finished: "),
}


@pytest.mark.parametrize("place", DURING)
def test_in_a_run(forge: Any, place: str, tmp_path: Path) -> None:
    plugin, sections, expected = DURING[place]
    training = {"steps": 1, "batch_size": 8, "learning_rate": 0.001}
    recipe = {"use": "grpo", "group_size": 8, "zero_variance": "keep"}
    code, printed = forge(plugin, **{"training": training, "recipe": recipe, **sections})
    assert code == 1, printed
    assert "SystemExit: 0" in printed
    assert expected in printed
    assert "Traceback" not in printed
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert json.loads(summary.read_text())["outcome"] == "failed"


def test_the_process_does_not_end_with_success(tmp_path: Path) -> None:
    program = (
        "import os, sys, threading, forge_core.cli as cli\n"
        "cli.main = lambda: getattr(os, '_exit')(0)\n"
        "cli.entry_point()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=process_environ()
    )
    assert done.returncode != 0
    assert "os._exit(0)" in done.stderr
    assert os._exit.__module__ == "posix"
