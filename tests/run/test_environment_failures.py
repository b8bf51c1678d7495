"""Episodes that fail in the environment, by what the section says: retried, dropped, scored, or the
end of the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    EnvironmentComponent,
    EnvironmentKeys,
    Episode,
    Forge,
    Message,
    RunFailed,
    Sampling,
    Selection,
    Settings,
    Task,
    hookimpl,
)
from forge_rollouts.episodes import rollout_group
from forge_run.environment import GuardedEnvironment
from forge_services.watchdog import Watchdog
from forge_testing.byte_tokenizer import byte_tokenizer
from forge_testing.runs import lines_of, small_config
from forge_testing.scripted_policy import ScriptedPolicy

Fails = Callable[[str, int, int], Any]
CHAT = (Message("user", "Go on."),)


class Talk:
    """Three turns. ``fails(task id, number of the interaction, turn)`` is called before each
    answer, and before the start as turn 0; a coroutine that it returns is awaited."""

    max_turns = 4

    def __init__(self, fails: Fails, prompt: Any = None) -> None:
        self.fails = fails
        self.prompt = prompt
        self.heard: list[list[str]] = []

    async def start(self, task: Task, seed: int) -> Any:
        environment, number = self, len(self.heard)
        heard: list[str] = []
        self.heard.append(heard)
        environment.fails(task.id, number, 0)

        class Interaction:
            prompt = environment.prompt or task.prompt

            async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
                heard.append(completion)
                result = environment.fails(task.id, number, len(heard))
                if asyncio.iscoroutine(result):
                    await result
                return f"{len(heard)}" if len(heard) < 3 else None

        return Interaction()


def once(turn: int, count: int = 1) -> Fails:
    """Fails in a turn, as often as that."""
    left = [count]

    def fails(task: str, number: int, at: int) -> None:
        if at == turn and left[0]:
            left[0] -= 1
            raise OSError("no sandbox")

    return fails


def guarded(talk: Talk, **keys: Any) -> GuardedEnvironment:
    component = EnvironmentComponent(
        name="talk", settings=Settings, build=lambda *_: talk, summary="a test's"
    )
    selection = Selection(
        family="environment", component=component, settings=Settings(), plugin="acme"
    )
    return GuardedEnvironment(selection, EnvironmentKeys(**keys), talk)


async def play(environment: GuardedEnvironment, size: int = 2) -> list[Episode]:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy([str(number) for number in range(7)], tokenizer)
    group = await rollout_group(
        Task("t", "?"),
        environment,
        size,
        generate=policy.generate,
        tokenizer=tokenizer,
        sampling=Sampling(max_tokens=50),
        seed=5,
    )
    return group.episodes


def told(episode: Episode) -> tuple[list[int], list[str], float, bool]:
    return (episode.tokens.tolist(), episode.completion_texts, episode.reward, episode.left_out)


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
async def test_a_failure_that_passes_leaves_no_trace(turn: int) -> None:
    undisturbed = await play(guarded(Talk(lambda *_: None, CHAT)))
    talk = Talk(once(turn), CHAT)
    environment = guarded(talk)
    episodes = await play(environment)
    assert [told(each) for each in episodes] == [told(each) for each in undisturbed]
    assert environment.take_retried() == 1
    assert environment.take_retried() == 0
    # The new interaction was told what the old one had been.
    assert len(talk.heard) == 3
    if turn:
        assert talk.heard[2] == episodes[0].completion_texts


async def test_an_episode_that_fails_for_good_is_dropped_alone() -> None:
    undisturbed = await play(guarded(Talk(lambda *_: None, CHAT)))
    first, second = await play(guarded(Talk(once(2, 2), CHAT)))
    assert told(second) == told(undisturbed[1])
    assert first.left_out
    assert first.environment_failure == (
        "environment 'talk' (plugin acme): respond failed (task 't', turn 2): OSError: no sandbox"
    )
    assert first.all_failures == {"environment": first.environment_failure}


async def test_an_episode_that_cannot_begin_is_dropped_alone() -> None:
    undisturbed = await play(guarded(Talk(lambda *_: None, CHAT)))
    first, second = await play(guarded(Talk(once(0, 2), CHAT)))
    assert told(second) == told(undisturbed[1])
    assert (first.turns, first.left_out) == ([], True)
    assert "start failed (task 't'): OSError: no sandbox" in first.environment_failure
    everything = await play(guarded(Talk(once(0, 99), CHAT)))
    assert [each.left_out for each in everything] == [True, True]


async def test_a_failure_can_have_a_reward() -> None:
    first, second = await play(guarded(Talk(once(2, 2), CHAT), on_failure=-1.0))
    assert (first.reward, first.left_out) == (-1.0, False)
    assert [turn.kind for turn in first.turns][-1] == "completion"
    assert not second.environment_failure


async def test_a_failure_can_be_the_end_of_the_run() -> None:
    with pytest.raises(RunFailed, match=r"respond failed \(task 't', turn 1\): OSError: no"):
        await play(guarded(Talk(once(1), CHAT), on_failure="fail", retries=0))


async def test_a_course_that_differs_when_it_is_played_again_fails() -> None:
    talk = Talk(once(2), CHAT)
    environment = guarded(talk)
    answers = iter(range(99))
    ask = environment.ask

    async def changing(*arguments: Any) -> str | None:
        answer = await ask(*arguments)
        return f"{next(answers)}" if answer is not None else None

    environment.ask = changing  # type: ignore[method-assign]
    first, _ = await play(environment)
    assert "turn 1 was answered differently when it was played again" in first.environment_failure


async def _never() -> None:
    await asyncio.sleep(600)


@pytest.mark.parametrize("hang", [lambda: time.sleep(600), _never])
async def test_an_answer_that_never_comes_is_reported_and_ended(hang: Any) -> None:
    events: list[str] = []

    def on_event(kind: str, message: str, data: Mapping[str, Any]) -> None:
        events.append(message)

    def fails(task: str, number: int, turn: int) -> Any:
        return hang() if number == 0 and turn == 2 else None

    with Watchdog(on_event, threshold=0.2) as watchdog:
        environment = guarded(Talk(fails, CHAT), deadline=1.0, retries=0)
        environment._waiting = lambda what, detail: watchdog.waiting("recipe grpo", what, detail)
        first, second = await play(environment)
    assert "(task 't', turn 2): DeadlineExceeded: no answer within 1 s" in (
        first.environment_failure
    )
    assert not second.environment_failure
    assert "for environment 'talk' (plugin acme) to respond (task 't', turn 2)" in events[0]


class Acme:
    """A plugin with that environment."""

    def __init__(self, fails: Fails) -> None:
        self.environment = Talk(fails)

    @hookimpl
    def forge_environments(self) -> Any:
        yield EnvironmentComponent(
            name="talk", settings=Settings, build=lambda *_: self.environment, summary="a test's"
        )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """``run(fails, **keys)``: the folder of a run of two steps of two groups of four."""

    def go(fails: Fails, **keys: Any) -> Path:
        output = tmp_path / "runs"
        config = small_config(
            environment={"use": "talk", **keys},
            recipe={"use": "grpo", "group_size": 4, "zero_variance": "keep"},
            training={"steps": 2, "batch_size": 8, "learning_rate": 0.001},
            sampling={"max_tokens": 40},
            checkpointing={"output_dir": str(output)},
            trackers={"console": None},
        )
        Forge(plugins=[Acme(fails)]).run(config)
        (folder,) = output.iterdir()
        return folder

    return go


def test_dropped_episodes_are_counted_and_told_of(run: Any) -> None:
    def fails(task: str, number: int, turn: int) -> None:
        if number in (1, 2) and turn == 1:
            raise OSError("no sandbox")

    folder = run(fails, retries=0)
    first, second = lines_of(folder / "metrics.jsonl")
    assert (first["environment/failed"], first["environment/dropped"]) == (2, 2)
    assert first["reward/left_out"] == first["reward/failed"] == 0
    assert (second["environment/failed"], second["environment/dropped"]) == (0, 0)
    (event,) = [
        line for line in lines_of(folder / "events.jsonl") if line["kind"] == "environment_failed"
    ]
    assert event["message"].startswith("2 of 8 episodes failed in the environment (left out): ")
    assert "turn 1): OSError: no sandbox (2 times)" in event["message"]


def test_an_environment_that_fails_on_everything_fails_the_run(run: Any) -> None:
    with pytest.raises(RunFailed, match=r"^\d episodes failed and none was answered: env"):
        run(once(1, 999))
