"""Whether all prompts can be answered, found out before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import DataError, NoRoom, PromptRefused, Sampling, Task
from forge_models.prompts import encode_prompt
from forge_rollouts.rollouts import none_answerable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import Dataset, RecipeContext, ServiceHandle


async def check_prompts(stage: RecipeContext, generator: ServiceHandle) -> None:
    """Tokenize every prompt of the stage's datasets, and have one token sampled for the longest.

    It is the tasks' own prompts that are looked at. What an environment makes of them is met when
    it is played.

    Raises:
        DataError: a prompt cannot be answered; names its task.
    """
    datasets = [stage.dataset]
    if stage.config.eval_dataset is not None:
        datasets.append(stage.eval_dataset)
    for dataset in datasets:
        task, tokens = _longest(dataset, stage.tokenizer)
        try:
            await generator.generate.route(tokens, Sampling(max_tokens=1, seed=0))
        except PromptRefused as error:
            raise _failure(task, error) from error


def _longest(dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[Task, list[int]]:
    """The task with the most prompt tokens, and these."""
    longest = dataset[0], list[int]()
    for index in range(len(dataset)):
        task = dataset[index]
        try:
            tokens = _tokens(task, tokenizer)
        except PromptRefused as error:
            raise _failure(task, error) from error
        if len(tokens) > len(longest[1]):
            longest = task, tokens
    return longest


def answerable(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, window: int | None) -> int:
    """Tasks whose own prompts leave room for a completion.

    Args:
        window: positions that the model has, or None.

    Raises:
        DataError: there are none; says why of the first.
    """
    count, refusal = 0, ""
    for index in range(len(dataset)):
        task = dataset[index]
        try:
            tokens = _tokens(task, tokenizer)
            if window is not None and len(tokens) >= window:
                raise NoRoom(
                    f"the prompt's {len(tokens)} tokens leave no room in the window of {window}"
                )
        except PromptRefused as error:
            refusal = refusal or f"task {task.id!r}: {error}"
        else:
            count += 1
    if not count:
        raise none_answerable(len(dataset), refusal)
    return count


def _tokens(task: Task, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Of a task's own prompt.

    Raises:
        PromptRefused: it cannot be encoded, or is empty.
    """
    tokens = encode_prompt(task.prompt, tokenizer, task.tools)
    if not tokens:
        raise PromptRefused("the prompt is empty")
    return tokens


def _failure(task: Task, error: PromptRefused) -> DataError:
    return DataError(
        f"task {task.id!r}: {error}; recipe.overlong_prompts=drop leaves such tasks out"
    )
