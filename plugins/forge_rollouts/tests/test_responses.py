"""What environments answer: messages with roles, rewards, metrics, ends, and turns for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forge_core import (
    Completion,
    DataError,
    EnvironmentComponent,
    EnvironmentKeys,
    Episode,
    FinishReason,
    Message,
    Response,
    Sampling,
    Selection,
    Settings,
    Task,
)
from forge_models.prompts import encode_prompt
from forge_rollouts.episodes import rollout_group
from forge_rollouts.places import Places
from forge_run.environment import GuardedEnvironment
from forge_testing.byte_tokenizer import byte_tokenizer
from forge_testing.scripted_policy import ScriptedPolicy

CHAT = (Message("user", "Guess."),)
Answers = Callable[[int, str, FinishReason], Any]


class Scripted:
    """Answers by turn with what ``answers(turn, said, finish_reason)`` returns."""

    shared_seed = True

    def __init__(self, answers: Answers, prompt: Any = CHAT, max_turns: int = 4) -> None:
        self.answers = answers
        self.prompt = prompt
        self.max_turns = max_turns
        self.started = 0
        self.closed = 0
        self.most_at_once = 0

    async def start(self, task: Task, seed: int) -> Any:
        environment = self
        prompt = self.prompt(self.started, seed) if callable(self.prompt) else self.prompt
        self.started += 1
        self.most_at_once = max(self.most_at_once, self.started - self.closed)

        class Interaction:
            def __init__(self) -> None:
                self.prompt = prompt
                self.turn = 0

            async def respond(self, completion: str, finish_reason: FinishReason) -> Any:
                await asyncio.sleep(0)
                self.turn += 1
                return environment.answers(self.turn, completion, finish_reason)

            async def close(self) -> None:
                environment.closed += 1

        return Interaction()


async def play(environment: Any, *, size: int = 1, generate: Any = None) -> list[Episode]:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy([str(number) for number in range(7)], tokenizer)
    group = await rollout_group(
        Task("t", "?"),
        environment,
        size,
        generate=generate or policy.generate,
        tokenizer=tokenizer,
        sampling=Sampling(max_tokens=50),
        seed=5,
    )
    return group.episodes


def guarded(environment: Any, heard: list[str] | None = None, **keys: Any) -> GuardedEnvironment:
    component = EnvironmentComponent(
        name="mine", settings=Settings, build=lambda *_: environment, summary="a test's"
    )
    selection = Selection(family="environment", component=component, settings=Settings())
    return GuardedEnvironment(
        selection,
        EnvironmentKeys(**keys),
        environment,
        on_event=lambda kind, message, data: heard.append(message) if heard is not None else None,
    )


async def test_rewards_and_metrics_of_turns() -> None:
    def answers(turn: int, said: str, finish_reason: FinishReason) -> Any:
        if turn == 1:
            return "go on"
        return Response(
            "over", reward=turn / 4, metrics={"turns": turn, "last": 0.5}, done=turn > 2
        )

    (episode,) = await play(Scripted(answers))
    assert episode.turn_rewards == [None, 0.5, 0.75]
    assert episode.environment_reward == 1.25
    assert episode.metrics == {"environment/turns": 3, "environment/last": 0.5}
    assert episode.observation_texts == ["go on", "over", "over"]
    assert [turn.kind for turn in episode.turns].count("observation") == 2
    assert [message.role for message in episode.messages] == ["user", "assistant"] * 3 + ["user"]
    assert not episode.truncated


async def test_an_environment_without_rewards_has_none() -> None:
    (episode,) = await play(Scripted(lambda *_: None))
    assert episode.environment_reward is None
    assert (episode.turn_rewards, episode.metrics) == ([None], {})


async def test_messages_keep_their_roles() -> None:
    tokenizer = byte_tokenizer()
    results = (Message("tool", "4"), Message("tool", "9"), Message("user", "Well?"))

    def answers(turn: int, said: str, finish_reason: FinishReason) -> Any:
        return Response(results) if turn == 1 else None

    (episode,) = await play(Scripted(answers))
    first, second = episode.completion_texts
    conversation = (*CHAT, Message("assistant", first), *results)
    assert episode.messages == [*conversation, Message("assistant", second)]
    assert episode.observation_texts == ["4\n9\nWell?"]
    seen = encode_prompt(conversation, tokenizer)
    assert episode.tokens.tolist()[: len(seen)] == seen
    assert sum(episode.loss_mask) == episode.completion_length


async def test_a_message_that_the_template_does_not_render_is_an_error() -> None:
    odd = Message("tool", "4", {"reasoning": "none"})
    with pytest.raises(DataError, match=r"task 't': .*reasoning"):
        await play(Scripted(lambda *_: Response((odd,))))


async def test_plain_text_is_answered_with_text() -> None:
    with pytest.raises(DataError, match="can only answer with text"):
        await play(Scripted(lambda *_: Response(CHAT), prompt="Guess: "))
    (episode,) = await play(
        Scripted(lambda turn, *_: "no " if turn < 2 else None, prompt="Guess: ")
    )
    assert episode.observation_texts == ["no "]


async def test_a_completion_that_was_cut_off_is_answered() -> None:
    reasons: list[FinishReason] = []

    def answers(turn: int, said: str, finish_reason: FinishReason) -> Any:
        reasons.append(finish_reason)
        return Response("too long", reward=-0.5, metrics={"cut": 1})

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        return [Completion([7, 8], [-1.0, -1.0], [0, 0], "length")] * sampling.n

    (episode,) = await play(Scripted(answers), generate=generate)
    assert reasons == ["length"]
    assert episode.truncated
    assert (episode.environment_reward, episode.metrics) == (-0.5, {"environment/cut": 1})
    assert episode.observation_texts == ["too long"]
    assert [turn.kind for turn in episode.turns] == ["prompt", "completion"]


async def test_prompts_that_differ_are_asked_for_one_by_one() -> None:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy([str(number) for number in range(7)], tokenizer)

    def prompt(index: int, seed: int) -> Any:
        return (Message("user", f"Room {index}"),)

    environment = Scripted(lambda *_: None, prompt)
    episodes = await play(environment, size=3, generate=policy.generate)
    assert [episode.prompt_text.count(f"Room {n}") for n, episode in enumerate(episodes)] == [1] * 3
    assert [sampling.n for _, sampling in policy.calls] == [1, 1, 1]
    assert len({sampling.seed for _, sampling in policy.calls}) == 3
    again = await play(Scripted(lambda *_: None, prompt), size=3)
    assert [e.tokens.tolist() for e in again] == [e.tokens.tolist() for e in episodes]


async def test_seeds_are_shared_unless_the_environment_says_otherwise() -> None:
    seeds: list[int] = []

    def prompt(index: int, seed: int) -> Any:
        seeds.append(seed)
        return CHAT

    environment = Scripted(lambda *_: None, prompt)
    await play(environment, size=3)
    assert seeds == [5, 5, 5]
    environment.shared_seed = False
    await play(environment, size=3)
    assert len(set(seeds[3:])) == 3


@pytest.mark.parametrize("fault", ["none", "respond", "generate", "cancel"])
async def test_interactions_are_always_closed(fault: str) -> None:
    def answers(turn: int, said: str, finish_reason: FinishReason) -> Any:
        if fault == "respond" and turn == 2:
            raise OSError("gone")
        return "on" if turn < 3 else None

    environment = Scripted(answers)
    calls = 0
    inner = ScriptedPolicy(["1"], byte_tokenizer())

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls > 3 and fault == "generate":
            raise DataError("no")
        if calls > 3 and fault == "cancel":
            await asyncio.sleep(60)
        return await inner.generate(prompt, sampling)

    playing = asyncio.ensure_future(
        play(guarded(environment, retries=0), size=4, generate=generate)
    )
    if fault == "cancel":
        await asyncio.sleep(0.1)
        playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert environment.started == environment.closed == 4


async def test_a_close_that_fails_or_hangs_is_told() -> None:
    heard: list[str] = []
    environment = Scripted(lambda *_: None)
    inner = environment.start

    async def start(task: Task, seed: int) -> Any:
        interaction = await inner(task, seed)

        async def close() -> None:
            environment.closed += 1
            if environment.closed == 1:
                raise OSError("stuck")
            await asyncio.sleep(60)

        interaction.close = close
        return interaction

    environment.start = start  # type: ignore[method-assign]
    await play(guarded(environment, heard, deadline=0.2), size=2)
    assert heard[0] == "environment 'mine': close failed (task 't'): OSError: stuck"
    assert "close failed (task 't')" in heard[1]


async def test_concurrency_bounds_the_interactions() -> None:
    free = Scripted(lambda turn, *_: "on" if turn < 3 else None)
    whole = await play(guarded(free), size=6)
    assert free.most_at_once == 6
    bounded = Scripted(lambda turn, *_: "on" if turn < 3 else None)
    environment = guarded(bounded, concurrency=4)
    groups = await asyncio.gather(*(play(environment, size=6) for _ in range(3)))
    assert bounded.most_at_once == 4
    assert bounded.started == bounded.closed == 18
    for group in groups:  # and changes nothing
        assert [e.tokens.tolist() for e in group] == [e.tokens.tolist() for e in whole]


async def test_places_are_given_in_the_order_of_asking() -> None:
    places = Places(3)
    order: list[str] = []

    async def use(name: str, count: int) -> None:
        await places.take(count)
        order.append(name)
        await asyncio.sleep(0.01)
        places.give(count)

    uses = [use("a", 2), use("b", 3), use("c", 1)]
    tasks = [asyncio.ensure_future(each) for each in uses]
    await asyncio.sleep(0)
    gone = asyncio.ensure_future(use("gone", 2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*tasks, gone, return_exceptions=True)
    assert order == ["a", "b", "c"]
    await asyncio.wait_for(places.take(3), 1)


class Duel:
    """Two agents in turn; the one that says the higher digit takes a point from the other."""

    max_turns = 4

    async def start(self, task: Task, seed: int) -> Any:
        class Interaction:
            prompt = (Message("system", "You are white."), Message("user", "Begin."))
            agent = "white"

            def __init__(self) -> None:
                self.said: list[str] = []

            async def respond(self, completion: str, finish_reason: FinishReason) -> Response:
                self.said.append(completion)
                turn = len(self.said)
                if turn == 1:
                    brief = (Message("system", "You are black."), Message("user", completion))
                    return Response(brief, agent="black")
                other = "white" if turn % 2 == 0 else "black"
                won = 1.0 if self.said[-1] > self.said[-2] else -1.0
                return Response(
                    f"they said {completion}",
                    reward=won,
                    rewards={other: -won},
                    agent=other,
                    done=turn == 4,
                )

        return Interaction()


async def test_several_agents_take_turns() -> None:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy([str(number) for number in range(7)], tokenizer)
    episodes = await play(Duel(), size=2, generate=policy.generate)
    assert [episode.agent for episode in episodes] == ["white", "black"] * 2
    for white, black in zip(episodes[::2], episodes[1::2], strict=True):
        assert len(white.completion_texts) == len(black.completion_texts) == 2
        assert white.messages[:2] == [
            Message("system", "You are white."),
            Message("user", "Begin."),
        ]
        assert black.messages[1] == Message("user", white.completion_texts[0])
        assert white.observation_texts == [f"they said {black.completion_texts[0]}"]
        assert white.environment_reward is not None
        assert white.environment_reward == -(black.environment_reward or 0.0)
        for episode in (white, black):
            said = [*encode_prompt(episode.messages[:4], tokenizer)]
            assert [turn.kind for turn in episode.turns] == [
                *("prompt", "completion", "observation", "completion")
            ]
            assert episode.tokens.tolist()[: len(said)] == said
            assert sum(episode.loss_mask) == episode.completion_length
        assert not white.truncated
    sampled = [completion.tokens.tolist() for completion in policy.completions]
    kept = [t.tokens.tolist() for e in episodes for t in e.turns if t.kind == "completion"]
    assert sorted(kept) == sorted(sampled)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (7, "respond returned a int; expected a Response, text or None"),
        (Response(("text",)), "whose messages are neither text nor Messages"),  # type: ignore[arg-type]
        (Response(reward="1"), "whose reward is '1', not a number"),  # type: ignore[arg-type]
        (Response(reward=float("nan")), "whose reward is nan"),
        (Response(metrics={"a": None}), "whose metric 'a' is None, not a number"),  # type: ignore[dict-item]
        (Response(metrics={"failed": 1}), "metric 'failed', which the kernel counts itself"),
    ],
)
async def test_what_is_no_answer_fails_the_run(answer: Any, problem: str) -> None:
    from forge_core import RunFailed

    with pytest.raises(RunFailed) as caught:
        await play(guarded(Scripted(lambda *_: answer)))
    assert problem in str(caught.value)
    assert "(task 't', turn 1)" in str(caught.value)
