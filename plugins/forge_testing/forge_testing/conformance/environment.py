"""What every environment must do. Inherit it, and say which with the ``selection`` fixture.

.. code-block:: python

    class TestMine(EnvironmentConformance):
        replies = ("left", "right", "give up")

        @pytest.fixture
        def selection(self):
            return Selection(family="environment", component=MINE, settings=MineSettings())

        @pytest.fixture
        def tasks(self):
            return [Task("maze", "Where to?", metadata={"size": 4})]

What the policy says is scripted: ``replies`` beside texts that no environment expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import pytest

from forge_core import (
    BuildContext,
    Environment,
    Episode,
    Group,
    Interaction,
    Message,
    Response,
    Sampling,
    Selection,
    Task,
)
from forge_rollouts.episodes import rollout_group
from forge_testing.byte_tokenizer import byte_tokenizer
from forge_testing.conformance.prompts import check_prompt
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context
from forge_testing.scripted_policy import ScriptedPolicy

UNEXPECTED = ("", " \n\t", "2", "\x00", "naïve 数学 🙂 \u202e", "</s>{}[]%s\\", "9" * 3000)
"""What a policy may say to any environment."""

SEEDS = (0, 1, 2**62)

EPISODES = 6
"""Of a group."""


class EnvironmentConformance(Suite):
    """Inherit with a ``selection`` fixture; override ``tasks`` for tasks of your kind."""

    replies: ClassVar[Sequence[str]] = ("yes", "the answer is 2")
    """What a policy may say that makes sense here, so that episodes go on and come to an end."""

    most_turns: ClassVar[int] = 20
    """Episodes are played no further by the tests that compare them turn by turn."""

    longest_pause: ClassVar[float] = 1.0
    """Seconds for which an environment may keep the event loop, which all episodes share."""

    @pytest.fixture
    def selection(self) -> Selection[Environment]:
        """The environment under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def context(self) -> BuildContext:
        """What it is built with."""
        return bare_context()

    @pytest.fixture
    def environment(self, selection: Selection[Environment], context: BuildContext) -> Environment:
        return built(selection, context)

    @pytest.fixture
    def tasks(self) -> Sequence[Task]:
        """What it is given."""
        chat = (Message("system", "Be brief."), Message("user", "1+1?"))
        return [Task("plain", "1+1=", answer="2"), Task("chat", chat, answer="2")]

    def test_an_episode_has_at_least_one_turn(self, environment: Environment) -> None:
        assert isinstance(environment.max_turns, int)
        assert environment.max_turns >= 1

    async def test_prompts_are_text_or_messages(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            async with _begun(environment, task, 0) as interaction:
                check_prompt(interaction.prompt, f"task {task.id}")

    async def test_prompts_do_not_tell_the_answer(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        """A policy that finds the answer there learns to copy. Single letters name choices."""
        for task in tasks:
            if task.answer is None or re.fullmatch(r"[A-Za-z]?", task.answer):
                continue
            async with _begun(environment, task, 0) as interaction:
                prompt = interaction.prompt
            said = prompt if isinstance(prompt, str) else " ".join(str(m.content) for m in prompt)
            told = re.search(rf"(?<!\w){re.escape(task.answer)}(?!\w)", said)
            assert not told, f"task {task.id}: the prompt has the answer {task.answer!r} in it"

    async def test_an_answer_is_text_a_response_or_the_end(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            for reply in (*self.replies, *UNEXPECTED):
                async with _begun(environment, task, 0) as interaction:
                    answer = await interaction.respond(reply, "stop")
                    try:
                        Response.of(answer)
                    except (TypeError, ValueError) as error:
                        raise AssertionError(f"to {reply[:20]!r}: {error}") from None

    async def test_a_completion_that_was_cut_off_is_answered(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        """The episode ends with it; its reward and metrics count."""
        for task in tasks:
            for reply in (*self.replies, *UNEXPECTED):
                async with _begun(environment, task, 0) as interaction:
                    Response.of(await interaction.respond(reply, "length"))

    async def test_what_was_begun_can_be_closed(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        """Before the first completion, and between two episodes that are under way."""
        for task in tasks:
            async with _begun(environment, task, 0):
                pass
            async with _begun(environment, task, 0) as interaction:
                async with _begun(environment, task, 0):
                    pass
                Response.of(await interaction.respond(self.replies[0], "stop"))

    async def test_task_and_seed_decide_everything(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            for seed in SEEDS:
                first = await self._transcript(environment, task, seed)
                again = await self._transcript(environment, task, seed)
                assert first == again, f"task {task.id}, seed {seed}: two courses"

    async def test_a_second_environment_does_the_same(
        self,
        environment: Environment,
        selection: Selection[Environment],
        context: BuildContext,
        tasks: Sequence[Task],
    ) -> None:
        other = selection.build(context)
        assert other.max_turns == environment.max_turns
        for task in tasks:
            first = await self._transcript(environment, task, 1)
            assert await self._transcript(other, task, 1) == first

    async def test_episodes_do_not_touch_each_other(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            alone = await self._transcript(environment, task, 0)
            async with (
                _begun(environment, task, 0) as watched,
                _begun(environment, task, 0) as disturbing,
            ):
                beside: list[object] = [watched.prompt]
                disturbs = True
                for reply in self._script(environment):
                    if disturbs:
                        said = await disturbing.respond(reply + "!", "stop")
                        disturbs = not Response.of(said).done
                    response = Response.of(await watched.respond(reply, "stop"))
                    beside.append(response)
                    if response.done:
                        break
            assert beside == alone, f"task {task.id}: another episode changed this one"

    async def test_the_event_loop_goes_on(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        """What takes time is awaited: a blocking call stops every other episode, and ctrl-C."""
        pauses = [await self._longest_pause(environment, tasks) for _ in range(2)]
        pause = min(pauses)  # a busy machine makes one of its own now and then
        assert pause <= self.longest_pause, (
            f"it keeps the event loop for {pause:.1f} s ({self.longest_pause:g} allowed); await "
            "what takes time, or run it in a thread (asyncio.to_thread)"
        )

    async def test_tasks_are_left_as_they_were(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        kept = copy.deepcopy(list(tasks))
        for task in tasks:
            await self._transcript(environment, task, 0)
        assert list(tasks) == kept

    async def test_episodes_keep_to_the_turn_limit(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            group, _ = await self._play(environment, task)
            for episode in group.episodes:
                kinds = [turn.kind for turn in episode.turns]
                turns = kinds.count("completion")
                assert 1 <= turns <= environment.max_turns
                assert kinds == ["prompt", *["completion", "observation"] * turns][:-1]
                assert not episode.truncated or turns == environment.max_turns or episode.agent

    async def test_exactly_the_sampled_tokens_are_trained(
        self, environment: Environment, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            group, policy = await self._play(environment, task)
            trained = [_trained(episode) for episode in group.episodes]
            sampled = [
                [
                    token
                    for turn in episode.turns
                    if turn.completion is not None
                    for token in turn.completion.tokens
                ]
                for episode in group.episodes
            ]
            assert trained == sampled
            said = [tuple(completion.tokens) for completion in policy.completions]
            kept = [
                tuple(turn.tokens)
                for episode in group.episodes
                for turn in episode.turns
                if turn.kind == "completion"
            ]
            assert sorted(kept) == sorted(said), "what was sampled is not what was kept"

    async def _play(self, environment: Environment, task: Task) -> tuple[Group, ScriptedPolicy]:
        tokenizer = byte_tokenizer()
        policy = ScriptedPolicy((*self.replies, *UNEXPECTED), tokenizer)
        group = await rollout_group(
            task,
            environment,
            EPISODES,
            generate=policy.generate,
            tokenizer=tokenizer,
            sampling=Sampling(),
            seed=3,
        )
        return group, policy

    async def _longest_pause(self, environment: Environment, tasks: Sequence[Task]) -> float:
        """Seconds between two turns of the event loop while episodes are played, at most."""
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.01)
                longest = max(longest, time.perf_counter() - before)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        episodes = (self._transcript(environment, task, seed) for task in tasks for seed in SEEDS)
        await asyncio.gather(*episodes)
        await asyncio.sleep(0.02)
        watching.cancel()
        return longest

    async def _transcript(self, environment: Environment, task: Task, seed: int) -> list[object]:
        """The prompt, and what the environment answers to the script."""
        async with _begun(environment, task, seed) as interaction:
            transcript: list[object] = [interaction.prompt]
            for reply in self._script(environment):
                response = Response.of(await interaction.respond(reply, "stop"))
                transcript.append(response)
                if response.done:
                    break
        return transcript

    def _script(self, environment: Environment) -> list[str]:
        said = (*self.replies, *UNEXPECTED)
        return [
            said[turn % len(said)] for turn in range(min(environment.max_turns, self.most_turns))
        ]


@contextlib.asynccontextmanager
async def _begun(environment: Environment, task: Task, seed: int) -> AsyncIterator[Interaction]:
    """An episode that is closed in the end."""
    interaction = await environment.start(task, seed)
    try:
        yield interaction
    finally:
        close = getattr(interaction, "close", None)
        if close is not None:
            await close()


def _trained(episode: Episode) -> list[int]:
    """Tokens under the loss mask; everything that is said of each token is there for all."""
    tokens, mask = episode.tokens, episode.loss_mask
    assert len(tokens) == len(mask) == len(episode.logprobs) == len(episode.versions)
    said_of = zip(mask, episode.logprobs, episode.versions, strict=True)
    for is_trained, logprob, version in said_of:
        assert is_trained == (logprob < 0) == (version >= 0)
    return [int(token) for token in tokens[mask]]
