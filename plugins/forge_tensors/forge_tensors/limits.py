"""What no model can be trained on: sequences beyond its window, tokens outside its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core import DataError, TrainSequence, UsageError


def check_sequences(
    sequences: Sequence[TrainSequence], *, window: int | None, vocabulary: int
) -> None:
    """Refuse what the model has never seen, before anything is computed.

    Rotary positions beyond the window raise no error, and a token outside the vocabulary raises a
    bare ``IndexError`` on a CPU and ends the process on a GPU.

    Args:
        sequences: of one call.
        window: most tokens of a sequence; None where positions have no end, as in state-space
            models.
        vocabulary: rows of the model's embedding.

    Raises:
        UsageError: a sequence is longer than the window.
        DataError: names a token, the vocabulary and the sequence.
    """
    longest = max((len(sequence.tokens) for sequence in sequences), default=0)
    if window is not None and longest > window:
        raise UsageError(
            f"a sequence of {longest} tokens is longer than the model's window of "
            f"{window} (max_position_embeddings)"
        )
    for number, sequence in enumerate(sequences, 1):
        unknown = (sequence.tokens < 0) | (sequence.tokens >= vocabulary)
        if unknown.any():
            position = int(unknown.argmax())
            raise DataError(
                f"token {sequence.tokens[position]} is not in the model's vocabulary of "
                f"{vocabulary} (ids 0 to {vocabulary - 1}): position {position} of sequence "
                f"{number} of {len(sequences)}; was it made with another model's tokenizer?"
            )
