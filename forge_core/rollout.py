"""One episode: the policy and an environment in turn. Token in, token out.

A prompt is tokenized once, completions are kept as the ids that were sampled, and what an
environment answers is tokenized once and appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forge_core.models.prompts import encode_prompt, encode_reply, prompt_text
from forge_core.seeding import derive_seed
from forge_core.types import Completion, Episode, Group, Sampling, Task, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.protocols import Environment

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
    """Sample the episodes of one task.

    Where an episode is one completion, the generator is asked once for all of them and computes
    their prompt once.
    """
    if environment.max_turns > 1:
        episodes = await asyncio.gather(
            *(
                rollout(
                    task,
                    environment,
                    generate=generate,
                    tokenizer=tokenizer,
                    sampling=sampling,
                    seed=derive_seed(seed, "episode", index),
                )
                for index in range(size)
            )
        )
        return Group(task, list(episodes))
    prompt = environment.start(task, seed).prompt
    tokens = encode_prompt(prompt, tokenizer)
    completions = await generate(tokens, replace(sampling, n=size, seed=seed))
    return Group(
        task,
        [
            _finish(
                Episode(task, [Turn("prompt", tokens), _turn(completion)], prompt_text(prompt)),
                tokenizer,
            )
            for completion in completions
        ],
    )


async def rollout(
    task: Task,
    environment: Environment,
    *,
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    seed: int,
) -> Episode:
    """One episode of any number of turns, at most ``environment.max_turns``.

    It also ends where a completion ran into its length: what comes after would not be the policy's.
    """
    interaction = environment.start(task, seed)
    prompt = interaction.prompt
    episode = Episode(task, [Turn("prompt", encode_prompt(prompt, tokenizer))], prompt_text(prompt))
    for number in range(environment.max_turns):
        turn_sampling = replace(sampling, n=1, seed=derive_seed(seed, "turn", number))
        (completion,) = await generate(episode.tokens, turn_sampling)
        episode.turns.append(_turn(completion))
        if completion.finish_reason != "stop":
            break
        text = _decode(completion, tokenizer)
        observation = await interaction.respond(text)
        if observation is None:
            return _finish(episode, tokenizer)
        reply = encode_reply(prompt, text, observation, tokenizer)
        episode.turns.append(Turn("observation", reply))
    else:
        # The environment wanted to go on; the observation after the last turn trains nothing.
        episode.turns.pop()
    _finish(episode, tokenizer)
    episode.truncated = True
    return episode


def _turn(completion: Completion) -> Turn:
    return Turn("completion", completion.tokens, completion)


def _finish(episode: Episode, tokenizer: PreTrainedTokenizerBase) -> Episode:
    completions = [turn.completion for turn in episode.turns if turn.completion is not None]
    episode.completion_texts = [_decode(completion, tokenizer) for completion in completions]
    episode.truncated = completions[-1].finish_reason == "length"
    return episode


def _decode(completion: Completion, tokenizer: PreTrainedTokenizerBase) -> str:
    text = tokenizer.decode(completion.tokens, skip_special_tokens=True)
    assert isinstance(text, str)
    return text
