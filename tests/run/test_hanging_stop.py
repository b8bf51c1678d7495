"""Ctrl-C ends a run within seconds whichever part hangs, and only the step under way is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, RunInterrupted, Task, hookimpl
from forge_run import interrupt
from forge_testing.context import component
from forge_testing.runs import lines_of, small_config, untimed

RELEASE = threading.Event()


async def waits() -> None:
    await asyncio.sleep(600)


async def blocks() -> None:
    time.sleep(600)


async def in_a_thread() -> None:
    await asyncio.to_thread(RELEASE.wait, 600)


async def ignores() -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


class Hanging:
    """The prompt, one answer. The answer to the first episode of the second step hangs, after
    ctrl-C was pressed."""

    max_turns = 1

    def __init__(self, hang: Callable[[], Any] | None) -> None:
        self.hang = hang
        self.answers = 0

    async def start(self, task: Task, seed: int) -> Any:
        environment = self

        class Interaction:
            prompt = task.prompt

            async def respond(self, completion: str, finish_reason: str = "stop") -> None:
                environment.answers += 1
                if environment.hang is not None and environment.answers > 8:
                    os.kill(os.getpid(), signal.SIGINT)
                    hang, environment.hang = environment.hang, None
                    await hang()

        return Interaction()


class Data:
    """Problems; reading hangs from the second step on, after ctrl-C was pressed."""

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs
        self.step = 0

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        self.step = record.step

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Task:
        if self.hangs and self.step:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)
        return Task(str(index), f"{index % 10}+1=", answer="2")


class Acme:
    def __init__(self, hook: str, built: Any) -> None:
        mine = component(hook, lambda *_: built)
        setattr(self, hook, hookimpl(lambda: [mine]))


def hanging_generator(is_on: list[bool]) -> Callable[[Any, Any], Any]:
    """Generator torch; the second step's calls never return."""

    def build(settings: Any, context: Any) -> Any:
        from forge_torch.plugin import forge_generators

        (torch,) = [each for each in forge_generators() if each.name == "torch"]
        generator = torch.build(torch.settings(), context)
        answer = generator.generate
        calls = 0

        async def generate(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if is_on[0] and calls > 2:
                if calls == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(600)
            return await answer(*arguments)

        generator.generate = generate
        return generator

    return build


def config(folder: Path, **sections: Any) -> dict[str, Any]:
    return small_config(
        recipe={"use": "grpo", "group_size": 4, "zero_variance": "keep"},
        training={"steps": 3, "batch_size": 8, "learning_rate": 0.001},
        sampling={"max_tokens": 40},
        checkpointing={"output_dir": str(folder)},
        trackers={"console": None},
        **sections,
    )


CASES: dict[str, Callable[[bool], tuple[list[object], dict[str, Any]]]] = {
    **{
        function.__name__: lambda on, function=function: (  # type: ignore[misc]
            [Acme("forge_environments", Hanging(function if on else None))],
            {"environment": {"use": "mine"}},
        )
        for function in (waits, blocks, in_a_thread, ignores)
    },
    "dataset": lambda on: (
        [data := Data(on), Acme("forge_datasets", data)],
        {"dataset": {"use": "mine"}},
    ),
    "generator": lambda on: (
        [_generator(on)],
        {"generator": {"use": "mine"}},
    ),
}


def _generator(on: bool) -> Acme:
    acme = Acme("forge_generators", None)
    mine = component("generator", hanging_generator([on]))
    acme.forge_generators = hookimpl(lambda: [mine])  # type: ignore[attr-defined]
    return acme


@pytest.mark.parametrize("case", CASES)
def test_the_step_is_given_up(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "GRACE", 0.5)
    RELEASE.clear()
    plugins, sections = CASES[case](True)
    began = time.monotonic()
    with pytest.raises(RunInterrupted, match=r"stopped by SIGINT at step 1, in the middle of the"):
        Forge(plugins=plugins).run(config(tmp_path / "runs", **sections))
    assert time.monotonic() - began < 100
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_1"]
    RELEASE.set()
    plugins, _ = CASES[case](False)
    Forge(plugins=plugins).run(resume=folder)
    Forge(plugins=plugins).run(config(tmp_path / "whole", **sections))
    (whole,) = (tmp_path / "whole").iterdir()
    expected = untimed(lines_of(whole / "metrics.jsonl"))
    assert untimed(lines_of(folder / "metrics.jsonl")) == expected
