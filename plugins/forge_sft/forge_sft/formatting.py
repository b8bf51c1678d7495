"""Tasks to training rows: the prompt is given, the response is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from forge_core import DataError, Task, TrainSequence
from forge_models.examples import encode_example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_sft.settings import SftSettings


class Rows:
    """Tasks to training rows under a recipe's settings.

    Args:
        settings: the recipe's.
        tokenizer: of the model.
        window: most positions of the model; None: not known.
    """

    def __init__(
        self, settings: SftSettings, tokenizer: PreTrainedTokenizerBase, window: int | None
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.window = window

    def make(self, task: Task) -> TrainSequence | None:
        """The row of a task; None where it is left out.

        Raises:
            DataError: as ``to_sequence``, or the row is longer than the model's window.
        """
        row = to_sequence(
            task,
            self.tokenizer,
            max_length=self.settings.max_length,
            overlong=self.settings.overlong,
        )
        if row is not None and self.window is not None and len(row.tokens) > self.window:
            raise DataError(
                f"task {task.id!r} has {len(row.tokens)} tokens, and the model's window is "
                f"{self.window} (max_position_embeddings); recipe.max_length={self.window} leaves "
                "such rows out, recipe.overlong=truncate beside it cuts them"
            )
        return row


def to_sequence(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["drop", "truncate"] = "drop",
) -> TrainSequence | None:
    """Prompt tokens, response tokens, the tokens that end it; the loss is on all but the first.

    A chat becomes what the model's chat template renders (``forge_models.examples``). The mask
    comes from lengths.

    Args:
        task: with a response, or an answer that serves as one.
        tokenizer: of the model.
        max_length: most tokens of a row.
        overlong: what to do with longer ones.

    Returns:
        None where the row is left out: too long, or nothing of the response would remain.

    Raises:
        DataError: the task has no response, or cannot be tokenized; names the task.
    """
    response = task.response if task.response is not None else task.answer
    if response is None:
        raise DataError(f"task {task.id!r} has neither response nor answer to imitate")
    try:
        example = encode_example(task.prompt, response, tokenizer, task.tools)
    except DataError as error:
        raise DataError(f"task {task.id!r}: {error}") from error
    prompt, learned = example.given, example.learned
    if max_length is not None and len(prompt) + len(learned) > max_length:
        if overlong == "drop" or len(prompt) >= max_length:
            return None
        learned = learned[: max_length - len(prompt)]
    tokens = np.array([*prompt, *learned], np.int32)
    return TrainSequence(tokens, loss_mask=np.arange(len(tokens)) >= len(prompt))
