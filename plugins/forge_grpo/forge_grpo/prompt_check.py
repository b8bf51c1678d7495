"""Whether all prompts can be answered, found out before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import DataError, PromptRefused, Sampling, Task
from forge_core.models.prompts import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.protocols import Dataset
    from forge_core.run.stage import Stage
    from forge_core.services.service import Service


async def check_prompts(stage: Stage, policy: Service) -> None:
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
            await policy.generate.route(tokens, Sampling(max_tokens=1, seed=0))
        except PromptRefused as error:
            raise _failure(task, error) from error


def _longest(dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[Task, list[int]]:
    """The task with the most prompt tokens, and these."""
    longest = dataset[0], list[int]()
    for index in range(len(dataset)):
        task = dataset[index]
        try:
            tokens = encode_prompt(task.prompt, tokenizer, task.tools)
            if not tokens:
                raise PromptRefused("the prompt is empty")
        except PromptRefused as error:
            raise _failure(task, error) from error
        if len(tokens) > len(longest[1]):
            longest = task, tokens
    return longest


def _failure(task: Task, error: PromptRefused) -> DataError:
    return DataError(
        f"task {task.id!r}: {error}; recipe.overlong_prompts=drop leaves such tasks out"
    )
