"""Tasks to training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from forge_core import DataError, Message, Task, TrainSequence
from forge_models.characters import character_tokenizer
from forge_models.prompts import encode_prompt
from forge_sft.formatting import to_sequence
from forge_tensors.batch import pack
from forge_testing.byte_tokenizer import byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = Task("t", "1+1=", response="2")
CHAT = Task("t", (Message("system", "Add."), Message("user", "1+1?")), response="2")


def row(task: Task, tokenizer: PreTrainedTokenizerBase) -> TrainSequence:
    sequence = to_sequence(task, tokenizer)
    assert sequence is not None
    pack([sequence])  # what a trainer does with it first
    return sequence


def given_and_learned(
    sequence: TrainSequence, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, str]:
    """Text of the tokens that are given and of those that are learned, which come after."""
    mask = list(sequence.loss_mask)
    assert mask == sorted(mask)
    parts = []
    for is_learned in (False, True):
        tokens = [t for t, m in zip(sequence.tokens, mask, strict=True) if m == is_learned]
        parts.append(tokenizer.decode(tokens))
    return parts[0], parts[1]


TOKENIZERS = {
    "plain": lambda: byte_tokenizer(eos="</s>", chat_template=None),
    "pad is eos": lambda: byte_tokenizer(eos="</s>", pad="</s>", chat_template=None),
    "bos": lambda: byte_tokenizer(eos="</s>", pad="</s>", bos="<s>", chat_template=None),
    "bos and eos": lambda: byte_tokenizer(eos="</s>", bos="<s>", appends_eos=True),
    "bos is eos": lambda: byte_tokenizer(eos="</s>", bos="</s>", pad="</s>", chat_template=None),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_response_and_its_end_are_learned(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    given, learned = given_and_learned(row(PLAIN, tokenizer), tokenizer)
    assert given == (tokenizer.bos_token or "") + "1+1="
    assert learned == "2</s>"


def test_a_character_tokenizer() -> None:
    tokenizer = character_tokenizer("0123456789+=")
    assert given_and_learned(row(PLAIN, tokenizer), tokenizer) == ("1+1=", "2<eos>")


@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
def test_a_chat_is_learned_as_the_template_renders_it(eos: str) -> None:
    tokenizer = byte_tokenizer(eos=eos, pad=eos)
    sequence = row(CHAT, tokenizer)
    given, learned = given_and_learned(sequence, tokenizer)
    assert given == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert learned == "2<|im_end|>"
    assert isinstance(CHAT.prompt, tuple)
    # A further turn begins with just these tokens: what is learned is what will be seen.
    further = (*CHAT.prompt, Message("assistant", "2"), Message("user", "Sure?"))
    assert encode_prompt(further, tokenizer)[: len(sequence.tokens)] == sequence.tokens.tolist()


def test_a_prompt_is_tokenized_as_at_inference() -> None:
    # Together "a" and "b" would be one token; at inference the prompt's "a" stands alone.
    tokenizer = byte_tokenizer(merges=[("a", "b")])
    a, b, ab = (tokenizer.convert_tokens_to_ids(token) for token in ("a", "b", "ab"))
    sequence = row(Task("t", "xa", response="b ab"), tokenizer)
    assert sequence.tokens[1:3].tolist() == [a, b]
    assert sequence.tokens[-2:].tolist() == [ab, tokenizer.eos_token_id]
    assert list(sequence.loss_mask) == [False] * 2 + [True] * 4


def test_the_response_counts_before_the_answer() -> None:
    tokenizer = byte_tokenizer()
    both = Task("t", "1+1=", answer="2", response="one and one is 2")
    assert given_and_learned(row(both, tokenizer), tokenizer)[1] == "one and one is 2<|im_end|>"
    answer = Task("t", "1+1=", answer="2")
    assert given_and_learned(row(answer, tokenizer), tokenizer)[1] == "2<|im_end|>"
    empty = Task("t", "1+1=", answer="2", response="")
    assert given_and_learned(row(empty, tokenizer), tokenizer)[1] == "<|im_end|>"


LENGTH = len("1+1=") + len("2345") + 1
LONG = Task("t", "1+1=", response="2345")


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
@pytest.mark.parametrize("max_length", [None, LENGTH, LENGTH + 1])
def test_what_fits_is_whole(max_length: int | None, overlong: Literal["drop", "truncate"]) -> None:
    tokenizer = byte_tokenizer()
    sequence = to_sequence(LONG, tokenizer, max_length=max_length, overlong=overlong)
    assert sequence is not None
    assert given_and_learned(sequence, tokenizer) == ("1+1=", "2345<|im_end|>")


def test_what_does_not_fit_is_dropped() -> None:
    assert to_sequence(LONG, byte_tokenizer(), max_length=LENGTH - 1) is None


@pytest.mark.parametrize(
    ("max_length", "learned"), [(LENGTH - 1, "2345"), (LENGTH - 2, "234"), (5, "2")]
)
def test_what_does_not_fit_is_cut_at_the_end(max_length: int, learned: str) -> None:
    tokenizer = byte_tokenizer()
    sequence = to_sequence(LONG, tokenizer, max_length=max_length, overlong="truncate")
    assert sequence is not None
    assert len(sequence.tokens) == len(sequence.loss_mask) == max_length
    assert given_and_learned(sequence, tokenizer) == ("1+1=", learned)


@pytest.mark.parametrize("max_length", [2, 4])
def test_a_prompt_that_leaves_no_room_is_dropped_even_so(max_length: int) -> None:
    assert to_sequence(LONG, byte_tokenizer(), max_length=max_length, overlong="truncate") is None


def test_nothing_to_imitate_is_an_error() -> None:
    with pytest.raises(DataError, match="task 't' has neither response nor answer"):
        to_sequence(Task("t", "1+1="), byte_tokenizer())


def test_nothing_to_follow_is_an_error() -> None:
    with pytest.raises(DataError, match="the prompt has no token"):
        to_sequence(Task("t", "", response="2"), byte_tokenizer())
    tokenizer = byte_tokenizer(bos="<s>")
    assert given_and_learned(row(Task("t", "", response="2"), tokenizer), tokenizer)[0] == "<s>"
