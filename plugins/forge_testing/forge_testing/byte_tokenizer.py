"""A small tokenizer that has tokens for every text, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of Qwen and many others. Only appends."""


def byte_tokenizer(
    *,
    chat_template: str | None = CHATML,
    bos: str | None = None,
    eos: str = "<|im_end|>",
    pad: str = "<|pad|>",
    merges: Sequence[tuple[str, str]] = (),
    added: Sequence[str] = (),
    appends_eos: bool = False,
) -> PreTrainedTokenizerBase:
    """A tokenizer with one token for each byte.

    Args:
        chat_template: in jinja; None: no chats.
        bos: token that it puts before every text; None: no such token.
        eos: its end-of-sequence token.
        pad: its padding token; may be ``eos``.
        merges: pairs that become one token, so that text does not tell its tokens any more: with
            ("a", "b") a sampled "a", "b" decodes to text that encodes to "ab".
        added: further special tokens, such as those of a chat template.
        appends_eos: put ``eos`` behind every text too.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = dict.fromkeys(
        ["<|im_start|>", "<|im_end|>", pad, eos, *([bos] if bos else []), *added]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    if bos or appends_eos:
        around = [*([bos] if bos else []), "$A", *([eos] if appends_eos else [])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around,
            special_tokens=[
                (text, tokenizer.token_to_id(text)) for text in dict.fromkeys([bos or eos, eos])
            ],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )
