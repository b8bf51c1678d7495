"""The episodes of one task: the policy and an environment in turn. Token in, token out.

A prompt is tokenized once, completions are kept as the ids that were sampled, and what an
environment answers is tokenized once and appended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge_core import (
    Completion,
    DataError,
    Episode,
    EpisodeFailed,
    Group,
    Message,
    NoRoom,
    Prompt,
    PromptRefused,
    Response,
    Sampling,
    Task,
    Turn,
    derive_seed,
)
from forge_core.contracts.blame import contained
from forge_models.decoding import decode_all
from forge_models.prompts import encode_prompt, encode_reply, encode_text, prompt_text
from forge_rollouts.eager import EagerTasks
from forge_rollouts.places import Places

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import Environment, Interaction

Generate = Callable[[Sequence[int], Sampling], Awaitable[list[Completion]]]


async def rollout_group(
    task: Task,
    environment: Environment,
    size: int,
    *,
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    seed: int,
) -> Group:
    """Sample the episodes of one task, of at most ``environment.max_turns`` completions each.

    Where all begin with the same prompt, the generator is asked once for their first completions,
    and computes the prompt once. From there each goes its own way. A group that is larger than the
    environment's ``concurrency`` is played in parts.

    Returns:
        the group; of an interaction with several agents, an episode for each of them.

    Raises:
        PromptRefused: the prompt cannot be tokenized or leaves no room in the window; names the
            task, as every ``DataError`` here does.
        DataError: the chat template does not allow episodes of several turns, or the generator
            refuses the sampling or a token.
    """
    with _naming(task):
        rollout = _Rollout(task, environment, size, generate, tokenizer, sampling, seed)
        return Group(task, await rollout.play())


@contextmanager
def _naming(task: Task) -> Iterator[None]:
    """A ``DataError`` names the task, and stays of its kind."""
    try:
        yield
    except DataError as error:
        kind = next(kind for kind in (NoRoom, PromptRefused, DataError) if isinstance(error, kind))
        raise kind(f"task {task.id!r}: {error}") from error


@dataclass(frozen=True)
class _Beginning:
    """A prompt as the policy is given it, and what was sampled for it."""

    prompt: Prompt
    text: str
    messages: Sequence[Message]
    turn: Turn
    said: list[tuple[Completion, str]]
    """Each completion with its text."""


@dataclass
class _Rollout:
    """The arguments of ``rollout_group``, and what is known so far."""

    task: Task
    environment: Environment
    size: int
    generate: Generate
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    seed: int
    shared: _Beginning | None = None
    """What the episodes begin with that begin alike."""

    async def play(self) -> list[Episode]:
        """All episodes, in order."""
        places: Places = getattr(self.environment, "places", None) or Places(self.size)
        played: dict[int, list[Episode]] = {}
        for first in range(0, self.size, places.most):
            part = range(first, min(first + places.most, self.size))
            await places.take(len(part))
            await self._play_part(part, places, played)
        return [episode for index in range(self.size) for episode in played[index]]

    async def _play_part(
        self, part: range, places: Places, played: dict[int, list[Episode]]
    ) -> None:
        """Play some of the episodes; whatever happens, their interactions are closed."""
        interactions: dict[int, Interaction] = {}
        left = len(part)

        async def end(index: int) -> None:
            nonlocal left
            try:
                await _close(interactions.pop(index, None))
            finally:
                left -= 1
                places.give(1)

        async def begin(index: int) -> None:
            try:
                interactions[index] = await self._start(index)
            except EpisodeFailed as failure:
                played[index] = [_unplayed(self.task, failure)]
                await end(index)

        tasks = EagerTasks()

        async def go_on(index: int, beginning: _Beginning, said: tuple[Completion, str]) -> None:
            try:
                played[index] = await self._episode(
                    index, interactions[index], beginning, said, tasks
                )
            finally:
                await end(index)

        try:
            await EagerTasks().run(begin(index) for index in part)
            beginnings = await self._beginnings(interactions)
            await tasks.run(go_on(index, *first) for index, first in beginnings.items())
        finally:
            for index in list(interactions):
                await end(index)
            places.give(left)

    async def _start(self, index: int) -> Interaction:
        shared = getattr(self.environment, "shared_seed", True)
        seed = self.seed if shared else derive_seed(self.seed, "start", index)
        with _InEnvironment(self.environment, self.task, "start"):
            starting = self.environment.start(self.task, seed)
            if not inspect.isawaitable(starting):
                raise TypeError("start must be a coroutine: write `async def`")
            interaction: Interaction = await starting
            if not hasattr(interaction, "prompt") or not callable(
                getattr(interaction, "respond", None)
            ):
                raise TypeError(
                    f"start returned a {type(interaction).__name__}; expected an object with "
                    "prompt and respond"
                )
            return interaction

    async def _beginnings(
        self, interactions: dict[int, Interaction]
    ) -> dict[int, tuple[_Beginning, tuple[Completion, str]]]:
        """Each interaction's prompt with its first completion.

        What an episode is given depends on its index and its own prompt, not on whether others
        could be started.
        """
        indexes = sorted(interactions)
        prompts = {index: interactions[index].prompt for index in indexes}
        if self.shared is None and indexes:
            first = prompts[indexes[0]]
            if all(prompt == first for prompt in prompts.values()):
                self.shared = await self._begin(first, self.size, self.seed)

        shared = {index: self.shared for index in indexes if self.shared is not None}
        shared = {index: each for index, each in shared.items() if prompts[index] == each.prompt}
        others = [index for index in indexes if index not in shared]
        own = await asyncio.gather(
            *(
                self._begin(prompts[index], 1, derive_seed(self.seed, "first", index))
                for index in others
            )
        )
        found = {index: (each, each.said[index]) for index, each in shared.items()}
        found |= {index: (each, each.said[0]) for index, each in zip(others, own, strict=True)}
        return {index: found[index] for index in indexes}

    async def _begin(self, prompt: Prompt, count: int, seed: int) -> _Beginning:
        text = prompt_text(prompt, self.tokenizer, self.task.tools)
        tokens = encode_prompt(prompt, self.tokenizer, self.task.tools)
        said = await self._said(tokens, count, seed)
        return _Beginning(prompt, text, _asked(prompt), Turn("prompt", tokens), said)

    async def _said(
        self, tokens: Sequence[int], count: int, seed: int
    ) -> list[tuple[Completion, str]]:
        """Completions of some tokens, each with its text."""
        completions = await self.generate(tokens, replace(self.sampling, n=count, seed=seed))
        texts = decode_all([each.tokens for each in completions], self.tokenizer)
        return list(zip(completions, texts, strict=True))

    def _side(
        self, agent: str, prompt: Prompt, text: str, messages: Sequence[Message], turn: Turn
    ) -> _Side:
        episode = Episode(
            self.task,
            [turn],
            text,
            messages=[*messages],
            group=str(self.seed),
            agent=agent,
        )
        return _Side(episode, prompt)

    async def _episode(
        self,
        index: int,
        interaction: Interaction,
        beginning: _Beginning,
        said: tuple[Completion, str],
        tasks: EagerTasks,
    ) -> list[Episode]:
        """Take an episode from its first completion to its end.

        It is truncated where a completion ran into its length (what would come after is not what
        the policy wanted to say), where the turn limit cuts the environment off, and where the
        conversation has filled the model's window.
        """
        agent = getattr(interaction, "agent", "")
        side = self._side(
            agent, beginning.prompt, beginning.text, beginning.messages, beginning.turn
        )
        sides = {agent: side}
        try:
            whole = await self._turns(index, interaction, sides, agent, said, tasks)
        except EpisodeFailed as failure:
            for side in sides.values():
                side.episode.environment_failure = str(failure)
                side.episode.left_out = failure.reward is None
                side.episode.reward = failure.reward or 0.0
        else:
            for side in sides.values():
                side.episode.truncated = not whole
        return [side.episode for side in sides.values()]

    async def _turns(
        self,
        index: int,
        interaction: Interaction,
        sides: dict[str, _Side],
        agent: str,
        said: tuple[Completion, str],
        tasks: EagerTasks,
    ) -> bool:
        """Policy and environment in turn.

        Returns:
            whether the environment ended the episode.
        """
        for turn in range(1, self.environment.max_turns + 1):
            side = sides[agent]
            completion, text = said
            side.say(completion, text)
            with _InEnvironment(self.environment, self.task, "respond"):
                answering = interaction.respond(text, completion.finish_reason)
                if not inspect.isawaitable(answering):
                    raise TypeError("respond must be a coroutine: write `async def`")
                response = Response.of(await answering)
            side.reward(response.reward)
            for name, reward in response.rewards.items():
                if name in sides:
                    sides[name].reward(reward, added=True)
            for metric, value in response.metrics.items():
                side.episode.metrics[f"environment/{metric}"] = value
            heard, agent = agent, response.agent or agent
            over = response.done or completion.finish_reason != "stop"
            if over or turn == self.environment.max_turns:
                if agent == heard:
                    side.hear(response)
                return response.done and completion.finish_reason == "stop"
            try:
                if agent in sides:
                    reply = sides[agent].answer(response, self.tokenizer)
                    tokens = [*sides[agent].episode.tokens.tolist(), *reply]
                else:
                    prompt = response.messages
                    reply = []
                    tokens = encode_prompt(prompt, self.tokenizer, self.task.tools)
                    shown = prompt_text(prompt, self.tokenizer, self.task.tools)
                    turn_of_prompt = Turn("prompt", tokens)
                    sides[agent] = self._side(agent, prompt, shown, _asked(prompt), turn_of_prompt)
                await tasks.own_task()
                seed = derive_seed(derive_seed(self.seed, "episode", index), "turn", turn)
                (said,) = await self._said(tokens, 1, seed)
            except NoRoom:
                if not sides[agent].episode.completion_texts:
                    del sides[agent]  # it has said nothing that could be trained on
                return False
            if reply:
                sides[agent].episode.turns.append(Turn("observation", reply))
        raise AssertionError("the last turn returns")


@dataclass
class _Side:
    """One agent's episode, and the conversation as its chat template has to render it."""

    episode: Episode
    conversation: Prompt
    last: Completion | None = field(default=None)

    def say(self, completion: Completion, text: str) -> None:
        """Keep a completion and its text."""
        said = Message("assistant", text)
        self.last = completion
        self.episode.turns.append(Turn("completion", completion.tokens, completion))
        self.episode.completion_texts.append(text)
        self.episode.messages.append(said)
        self.episode.turn_rewards.append(None)
        if not isinstance(self.conversation, str):
            self.conversation = (*self.conversation, said)

    def reward(self, reward: float | None, *, added: bool = False) -> None:
        """The reward of the agent's last turn, or what is added to it."""
        if reward is None:
            return
        rewards = self.episode.turn_rewards
        rewards[-1] = reward + ((rewards[-1] or 0.0) if added else 0.0)

    def hear(self, response: Response) -> None:
        """Keep what the environment says, as text."""
        if not response.messages:
            return
        messages = response.as_messages
        self.episode.messages.extend(messages)
        self.episode.observation_texts.append("\n".join(each.content for each in messages))

    def answer(self, response: Response, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Keep what the environment says; its token ids behind the agent's last completion."""
        self.hear(response)
        if isinstance(self.conversation, str):
            if not isinstance(response.messages, str):
                raise DataError(
                    "the prompt is plain text, so the environment can only answer with text; "
                    "begin with messages for a chat"
                )
            return encode_text(response.messages, tokenizer)
        assert self.last is not None
        said = response.as_messages
        reply = encode_reply(
            self.conversation,
            said,
            tokenizer,
            last_token=int(self.last.tokens[-1]),
            tools=self.episode.task.tools,
        )
        self.conversation = (*self.conversation, *said)
        return reply


def _asked(prompt: Prompt) -> Sequence[Message]:
    return (Message("user", prompt),) if isinstance(prompt, str) else prompt


def _unplayed(task: Task, cause: object) -> Episode:
    """An episode that could not be begun. Nothing was sampled, so that there is nothing to train
    on, whatever such an episode's reward is."""
    return Episode(task, [], left_out=True, environment_failure=str(cause))


class _InEnvironment:
    """A block of an environment's code: what it raises says which environment it was, and at which
    task. No generator: it surrounds several calls of each episode."""

    __slots__ = ("_environment", "_method", "_task")

    def __init__(self, environment: Environment, task: Task, method: str) -> None:
        self._environment = environment
        self._task = task
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if error is None:
            return
        try:
            with contained():
                raise error
        except Exception as told:
            name = type(self._environment).__name__
            told.add_note(f"in {self._method}() of environment {name}, task {self._task.id!r}")
            if told is not error:
                raise


async def _close(interaction: Interaction | None) -> None:
    """Let an interaction that holds something give it back."""
    close = getattr(interaction, "close", None)
    if close is not None:
        await close()
