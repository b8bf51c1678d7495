"""A tokenizer with one token for each character, for models made from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, EOS = "<pad>", "<eos>"


def check_characters(characters: str) -> None:
    """Check an alphabet without making the tokenizer.

    Raises:
        ConfigError: it is empty or repeats a character.
    """
    if not characters:
        raise ConfigError("model.init.characters: the alphabet is empty")
    repeated = sorted({c for c in characters if characters.count(c) > 1})
    if repeated:
        raise ConfigError(f"model.init.characters: {repeated[0]!r} is in it twice")


def character_tokenizer(characters: str) -> PreTrainedTokenizerBase:
    """One token for each character of an alphabet, after ``<pad>`` (0) and ``<eos>`` (1).

    A character outside the alphabet is an error when text is encoded; there is no unknown token for
    it to vanish into.

    Raises:
        ConfigError: the alphabet is empty or repeats a character.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    check_characters(characters)
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )
