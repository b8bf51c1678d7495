"""Tasks to training rows: the prompt is given, the response is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from forge_core import DataError, Task, TrainSequence
from forge_core.models.prompts import encode_prompt, encode_response

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def to_sequence(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["drop", "truncate"] = "drop",
) -> TrainSequence | None:
    """Prompt tokens, response tokens, the token that ends it; the loss is on the last two.

    Prompt and response are tokenized apart, as they are at inference, where the prompt's tokens
    stand before the first response token is sampled. The mask comes from their lengths.

    Args:
        task: with a response, or an answer that serves as one.
        tokenizer: of the model.
        max_length: most tokens of a row.
        overlong: what to do with longer ones.

    Returns:
        None where the row is left out: too long, or nothing of the response would remain.

    Raises:
        DataError: the task has no response, the tokenizer no end-of-sequence token, or the prompt
            not one token.
    """
    response = task.response if task.response is not None else task.answer
    if response is None:
        raise DataError(f"task {task.id!r} has neither response nor answer to imitate")
    prompt = encode_prompt(task.prompt, tokenizer)
    if not prompt:
        raise DataError(f"task {task.id!r}: the prompt has no token for a response to follow")
    learned = encode_response(task.prompt, response, tokenizer)
    if max_length is not None and len(prompt) + len(learned) > max_length:
        if overlong == "drop" or len(prompt) >= max_length:
            return None
        learned = learned[: max_length - len(prompt)]
    return TrainSequence(
        tokens=[*prompt, *learned], loss_mask=[False] * len(prompt) + [True] * len(learned)
    )
