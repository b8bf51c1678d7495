"""Episodes: token in, token out, over one turn and several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from forge_core import (
    Completion,
    DataError,
    Episode,
    FinishReason,
    Group,
    Message,
    NoRoom,
    Prompt,
    PromptRefused,
    Sampling,
    Task,
)
from forge_models.prompts import encode_prompt
from forge_rollouts.episodes import Generate, rollout_group
from forge_testing.byte_tokenizer import CHATML, byte_tokenizer
from forge_testing.scripted_policy import ScriptedPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT = (Message("user", "Guess my number."),)


class Guessing:
    """Answers every completion with ``observation``, until it hears ``ends``."""

    def __init__(self, prompt: Prompt, max_turns: int = 4, ends: str = "7") -> None:
        self.prompt = prompt
        self.max_turns = max_turns
        self.ends = ends
        self.seeds: list[int] = []
        self.heard: list[str] = []

    async def start(self, task: Task, seed: int) -> Guesses:
        self.seeds.append(seed)
        return Guesses(self)


class Guesses:
    def __init__(self, environment: Guessing) -> None:
        self.environment = environment
        self.prompt = environment.prompt
        self.turns = 0

    async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
        self.environment.heard.append(completion)
        self.turns += 1
        return None if completion == self.environment.ends else f"wrong, try {self.turns}"


def says(
    tokenizer: PreTrainedTokenizerBase, *turns: str, finish: FinishReason = "stop"
) -> tuple[Generate, list[tuple[list[int], Sampling]]]:
    """A policy that says one text after another; the last ends for the reason given."""
    calls: list[tuple[list[int], Sampling]] = []

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        turn = len(calls)
        calls.append((list(prompt), sampling))
        tokens = tokenizer.encode(turns[turn], add_special_tokens=False)
        reason: FinishReason = finish if turn == len(turns) - 1 else "stop"
        if reason == "stop":
            tokens = [*tokens, tokenizer.eos_token_id]
        logprobs = [-1.0 - turn - position / 100 for position in range(len(tokens))]
        return [Completion(tokens, logprobs, [turn] * len(tokens), reason)] * sampling.n

    return generate, calls


async def play(
    environment: Guessing,
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    *,
    size: int = 1,
    seed: int = 5,
    tools: tuple[dict[str, str], ...] = (),
) -> Group:
    return await rollout_group(
        Task("t", environment.prompt, tools=tools),
        environment,
        size,
        generate=generate,
        tokenizer=tokenizer,
        sampling=Sampling(max_tokens=50, temperature=0.7),
        seed=seed,
    )


def kinds(episode: Episode) -> list[str]:
    return [turn.kind for turn in episode.turns]


# One turn.


async def test_a_group_asks_the_generator_once_for_all_first_completions() -> None:
    tokenizer = byte_tokenizer(bos="<s>")
    policy = ScriptedPolicy(["1", "22", "333"], tokenizer)
    group = await play(Guessing("Guess: ", max_turns=1), policy.generate, tokenizer, size=6)
    ((prompt, sampling),) = policy.calls
    assert prompt == encode_prompt("Guess: ", tokenizer)
    assert (sampling.n, sampling.seed) == (6, 5)
    assert (sampling.max_tokens, sampling.temperature) == (50, 0.7)
    assert len(group.episodes) == 6
    assert [episode.turns[1].completion for episode in group.episodes] == policy.completions
    assert {episode.prompt_text for episode in group.episodes} == {"Guess: "}


async def test_a_tasks_tools_are_rendered_in_every_turn() -> None:
    tokenizer = byte_tokenizer(chat_template="{{ tools | tojson if tools }}\n" + CHATML)
    generate, calls = says(tokenizer, "1", "7")
    group = await play(Guessing(CHAT), generate, tokenizer, tools=({"name": "add"},))
    (episode,) = group.episodes
    assert episode.prompt_text.startswith('[{"name": "add"}]\n<|im_start|>user')
    assert tokenizer.decode(calls[0][0]) == episode.prompt_text
    assert [turn.kind for turn in episode.turns][-2:] == ["observation", "completion"]
    with pytest.raises(PromptRefused, match=r"task 't': .* does not use 'tools'"):
        await play(Guessing(CHAT), generate, byte_tokenizer(), tools=({"name": "add"},))


async def test_sampled_tokens_are_never_tokenized_again() -> None:
    # "ab" is one token to the tokenizer, and was sampled as two.
    tokenizer = byte_tokenizer(merges=[("a", "b")])
    a, b, ab = (tokenizer.convert_tokens_to_ids(token) for token in ("a", "b", "ab"))
    assert tokenizer.encode("ab", add_special_tokens=False) == [ab]
    sampled = [a, b, tokenizer.eos_token_id]
    prompts: list[list[int]] = []

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        prompts.append(list(prompt))
        return [Completion(sampled, [-1.0, -2.0, -3.0], [0, 0, 1], "stop")] * sampling.n

    environment = Guessing(CHAT, max_turns=3)
    (episode,) = (await play(environment, generate, tokenizer)).episodes
    assert environment.heard == ["ab"] * 3
    assert episode.completion_texts == ["ab"] * 3
    assert [turn.tokens.tolist() for turn in episode.turns if turn.kind == "completion"] == [
        sampled
    ] * 3
    assert ab not in episode.tokens
    # What the policy is given next is what it said, token for token.
    assert prompts[1][: len(prompts[0]) + 3] == prompts[0] + sampled
    assert prompts[2][: len(prompts[1]) + 3] == prompts[1] + sampled


@pytest.mark.parametrize("finish", ["stop", "length", "cancelled"])
async def test_an_episode_is_truncated_when_its_completion_was_cut(finish: FinishReason) -> None:
    tokenizer = byte_tokenizer()
    environment = Guessing("Guess: ", max_turns=1)
    generate, _ = says(tokenizer, "7", finish=finish)
    (episode,) = (await play(environment, generate, tokenizer)).episodes
    assert kinds(episode) == ["prompt", "completion"]
    assert episode.completion_texts == ["7"]
    assert episode.truncated == (finish != "stop")


# Several turns.


async def test_tokens_of_a_chat_are_what_the_template_renders() -> None:
    tokenizer = byte_tokenizer()
    generate, calls = says(tokenizer, "1", "22", "7")
    (episode,) = (await play(Guessing(CHAT), generate, tokenizer)).episodes
    assert kinds(episode) == ["prompt", *["completion", "observation"] * 3][:-1]
    assert not episode.truncated
    conversation = (
        *CHAT,
        Message("assistant", "1"),
        Message("user", "wrong, try 1"),
        Message("assistant", "22"),
        Message("user", "wrong, try 2"),
    )
    for turn, (prompt, _) in enumerate(calls):
        assert prompt == encode_prompt(conversation[: 1 + 2 * turn], tokenizer)
    last = [*tokenizer.encode("7"), tokenizer.eos_token_id]
    assert episode.tokens.tolist() == encode_prompt(conversation, tokenizer) + last


async def test_plain_text_goes_on_with_the_observation() -> None:
    tokenizer = byte_tokenizer(bos="<s>", eos="</s>")
    generate, _ = says(tokenizer, "1", "7")
    (episode,) = (await play(Guessing("Guess: "), generate, tokenizer)).episodes
    assert tokenizer.decode(episode.tokens) == "<s>Guess: 1</s>wrong, try 17</s>"


async def test_what_is_said_of_each_token_stays_with_it() -> None:
    tokenizer = byte_tokenizer()
    generate, _ = says(tokenizer, "1", "22", "7")
    (episode,) = (await play(Guessing(CHAT), generate, tokenizer)).episodes
    rows = list(
        zip(episode.tokens, episode.loss_mask, episode.logprobs, episode.versions, strict=True)
    )
    end = tokenizer.eos_token_id
    one, two, seven = (tokenizer.convert_tokens_to_ids(digit) for digit in "127")
    assert [row for row in rows if row[1]] == [
        (one, True, np.float32(-1.0), 0),
        (end, True, np.float32(-1.01), 0),
        (two, True, np.float32(-2.0), 1),
        (two, True, np.float32(-2.01), 1),
        (end, True, np.float32(-2.02), 1),
        (seven, True, np.float32(-3.0), 2),
        (end, True, np.float32(-3.01), 2),
    ]
    assert {row[2:] for row in rows if not row[1]} == {(0.0, -1)}
    assert episode.completion_length == 7


async def test_the_turn_limit_cuts_the_environment_off() -> None:
    tokenizer = byte_tokenizer()
    environment = Guessing(CHAT, max_turns=2)
    generate, calls = says(tokenizer, "1", "2", "never asked for")
    (episode,) = (await play(environment, generate, tokenizer)).episodes
    assert len(calls) == 2
    assert kinds(episode) == ["prompt", "completion", "observation", "completion"]
    assert episode.truncated


async def test_an_end_on_the_last_turn_is_an_end() -> None:
    tokenizer = byte_tokenizer()
    generate, _ = says(tokenizer, "1", "7")
    (episode,) = (await play(Guessing(CHAT, max_turns=2), generate, tokenizer)).episodes
    assert kinds(episode) == ["prompt", "completion", "observation", "completion"]
    assert not episode.truncated


async def test_a_cut_completion_ends_the_episode() -> None:
    tokenizer = byte_tokenizer()
    environment = Guessing(CHAT)
    generate, _ = says(tokenizer, "1", "22", finish="length")
    (episode,) = (await play(environment, generate, tokenizer)).episodes
    assert kinds(episode) == ["prompt", "completion", "observation", "completion"]
    assert environment.heard == ["1", "22"]  # the last word is heard, and changes nothing
    assert episode.truncated


async def test_a_full_window_ends_the_episode_and_not_the_run() -> None:
    tokenizer = byte_tokenizer()
    say, _ = says(tokenizer, "1", "22", "7")

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        if len(prompt) > 60:
            raise NoRoom(f"a prompt of {len(prompt)} tokens leaves no room in the window of 60")
        return await say(prompt, sampling)

    (episode,) = (await play(Guessing(CHAT), generate, tokenizer)).episodes
    assert kinds(episode) == ["prompt", "completion"]
    assert episode.truncated
    long = Guessing((Message("user", "?" * 200),))
    with pytest.raises(NoRoom, match=r"task 't': .* no room in the window"):
        await play(long, generate, tokenizer)


async def test_a_conversation_that_the_template_refuses_is_named() -> None:
    picky = "{{ raise_exception('no users here') if messages[0].role == 'user' }}" + CHATML
    tokenizer = byte_tokenizer(chat_template=picky)
    generate, _ = says(tokenizer, "1")
    with pytest.raises(PromptRefused, match=r"task 't': .*refuses.*user: no users here"):
        await play(Guessing(CHAT), generate, tokenizer)


async def test_any_other_refusal_of_a_later_turn_is_an_error() -> None:
    tokenizer = byte_tokenizer()
    say, calls = says(tokenizer, "1", "7")

    async def generate(prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        if calls:
            raise DataError("token id 300 of the prompt is outside the vocabulary")
        return await say(prompt, sampling)

    with pytest.raises(DataError, match="task 't': token id 300"):
        await play(Guessing(CHAT), generate, tokenizer)


async def test_a_template_that_forgets_cannot_have_several_turns() -> None:
    last = CHATML.replace("message.content", "(message.content if loop.last else '...')")
    tokenizer = byte_tokenizer(chat_template=last)
    generate, _ = says(tokenizer, "1", "7")
    with pytest.raises(DataError, match="rewrites earlier turns"):
        await play(Guessing(CHAT), generate, tokenizer)
    generate, _ = says(tokenizer, "1")
    await play(Guessing(CHAT, max_turns=1), generate, tokenizer)  # one turn is fine


# Seeds.


async def test_episodes_of_a_group_begin_alike_and_go_their_own_ways() -> None:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy([str(number) for number in range(7)], tokenizer)
    environment = Guessing(CHAT, max_turns=3)
    group = await play(environment, policy.generate, tokenizer, size=4)
    assert environment.seeds == [5] * 4  # one task, one beginning
    first, *later = [sampling for _, sampling in policy.calls]
    assert (first.n, first.seed) == (4, 5)
    assert len(later) == 4 * 2
    assert all(sampling.n == 1 for sampling in later)
    assert len({sampling.seed for sampling in later}) == 8
    assert len({tuple(episode.tokens) for episode in group.episodes}) == 4


async def test_a_seed_repeats_a_group_whatever_comes_first() -> None:
    tokenizer = byte_tokenizer()

    async def tokens(seed: int) -> list[list[int]]:
        policy = ScriptedPolicy([str(number) for number in range(50)], tokenizer)
        group = await play(Guessing(CHAT), policy.generate, tokenizer, size=4, seed=seed)
        return [episode.tokens.tolist() for episode in group.episodes]

    assert await tokens(1) == await tokens(1) != await tokens(2)
