"""The episodes of one task: the policy and an environment in turn. Token in, token out.

A prompt is tokenized once, completions are kept as the ids that were sampled, and what an
environment answers is tokenized once and appended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from forge_core.contracts.blame import contained
from forge_core.contracts.errors import DataError, EpisodeFailed, NoRoom, PromptRefused
from forge_core.contracts.seeding import derive_seed
from forge_core.contracts.types import (
    Completion,
    Episode,
    Group,
    Message,
    Prompt,
    Sampling,
    Task,
    Turn,
)
from forge_core.models.chat_template import Tools
from forge_core.models.prompts import encode_prompt, encode_reply, encode_text, prompt_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.contracts.protocols import Environment, Interaction

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

    All begin with the same prompt: the generator is asked once for their first completions, and
    computes the prompt once. From there each goes its own way.

    Raises:
        PromptRefused: the prompt cannot be tokenized or leaves no room in the window; names the
            task, as every ``DataError`` here does.
        DataError: the chat template does not allow episodes of several turns, or the generator
            refuses the sampling or a token.
    """
    with _naming(task):
        started = [_start(environment, task, seed) for _ in range(size)]
        interactions = [each for each in started if not isinstance(each, EpisodeFailed)]
        if not interactions:
            return Group(task, [_unplayed(task, cause) for cause in started])
        prompt = interactions[0].prompt
        text = prompt_text(prompt, tokenizer, task.tools)
        tokens = encode_prompt(prompt, tokenizer, task.tools)
        completions = await generate(tokens, replace(sampling, n=size, seed=seed))
        asked = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        episodes = [
            Episode(task, [Turn("prompt", tokens)], text, messages=[*asked], group=str(seed))
            for _ in range(size)
        ]
        await asyncio.gather(
            *(
                _play(
                    episode,
                    interaction,
                    completion,
                    environment=environment,
                    generate=generate,
                    tokenizer=tokenizer,
                    sampling=sampling,
                    seed=derive_seed(seed, "episode", index),
                )
                for index, (episode, interaction, completion) in enumerate(
                    zip(episodes, started, completions, strict=True)
                )
                if not isinstance(interaction, EpisodeFailed)
            )
        )
    for index, cause in enumerate(started):
        if isinstance(cause, EpisodeFailed):
            episodes[index] = _unplayed(task, cause)
    return Group(task, episodes)


def _start(environment: Environment, task: Task, seed: int) -> Interaction | EpisodeFailed:
    try:
        with _in_environment(environment, task, "start"):
            return _checked(environment.start(task, seed))
    except EpisodeFailed as failure:
        return failure


def _unplayed(task: Task, cause: object) -> Episode:
    """An episode that could not be begun. Nothing was sampled, so that there is nothing to train
    on, whatever such an episode's reward is."""
    return Episode(task, [], left_out=True, environment_failure=str(cause))


@contextmanager
def _naming(task: Task) -> Iterator[None]:
    """A ``DataError`` names the task, and stays of its kind."""
    try:
        yield
    except DataError as error:
        kind = next(kind for kind in (NoRoom, PromptRefused, DataError) if isinstance(error, kind))
        raise kind(f"task {task.id!r}: {error}") from error


async def _play(
    episode: Episode,
    interaction: Interaction,
    completion: Completion,
    *,
    environment: Environment,
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    seed: int,
) -> None:
    """Take an episode from its first completion to its end.

    It is truncated where a completion ran into its length (what would come after is not what the
    policy wanted to say), where the turn limit cuts the environment off, and where the
    conversation has filled the model's window.
    """
    conversation = interaction.prompt
    max_turns = environment.max_turns
    for turn in range(1, max_turns + 1):
        text = tokenizer.decode(completion.tokens, skip_special_tokens=True)
        assert isinstance(text, str)
        episode.turns.append(Turn("completion", completion.tokens, completion))
        episode.completion_texts.append(text)
        episode.messages.append(Message("assistant", text))
        if completion.finish_reason != "stop":
            break
        try:
            with _in_environment(environment, episode.task, "respond"):
                observation = await _observation(interaction, text)
        except EpisodeFailed as failure:
            episode.environment_failure = str(failure)
            episode.left_out = failure.reward is None
            episode.reward = failure.reward or 0.0
            return
        if observation is None:
            return
        if turn == max_turns:
            break
        reply, conversation = _reply(
            conversation,
            text,
            observation,
            tokenizer,
            last_token=int(completion.tokens[-1]),
            tools=episode.task.tools,
        )
        tokens = [*episode.tokens.tolist(), *reply]
        again = replace(sampling, n=1, seed=derive_seed(seed, "turn", turn))
        try:
            (completion,) = await generate(tokens, again)
        except NoRoom:
            break
        episode.turns.append(Turn("observation", reply))
        episode.observation_texts.append(observation)
        episode.messages.append(Message("user", observation))
    episode.truncated = True


@contextmanager
def _in_environment(environment: Environment, task: Task, method: str) -> Iterator[None]:
    """What the environment raises says which environment it was, and at which task."""
    try:
        with contained():
            yield
    except Exception as error:
        name = type(environment).__name__
        error.add_note(f"in {method}() of environment {name}, task {task.id!r}")
        raise


def _checked(interaction: Interaction) -> Interaction:
    if not hasattr(interaction, "prompt") or not callable(getattr(interaction, "respond", None)):
        raise TypeError(
            f"start returned a {type(interaction).__name__}; expected an object with prompt and "
            "respond"
        )
    return interaction


async def _observation(interaction: Interaction, completion: str) -> str | None:
    answer = interaction.respond(completion)
    if not inspect.isawaitable(answer):
        raise TypeError("respond must be a coroutine: write `async def`")
    observation = await answer
    if observation is not None and not isinstance(observation, str):
        raise TypeError(f"respond returned a {type(observation).__name__}; expected text or None")
    return observation


def _reply(
    conversation: Prompt,
    completion: str,
    observation: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    last_token: int,
    tools: Tools,
) -> tuple[list[int], Prompt]:
    """Token ids of an observation, and the conversation up to the next completion."""
    if isinstance(conversation, str):
        return encode_text(observation, tokenizer), conversation
    conversation = (*conversation, Message("assistant", completion))
    reply = encode_reply(conversation, observation, tokenizer, last_token=last_token, tools=tools)
    return reply, (*conversation, Message("user", observation))
