"""Training rows of chats on the templates of published models.

The templates are package data of TRL, which is installed without its dependencies and not imported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_core import DataError, Message, Task
from forge_models.prompts import (
    encode_prompt,
    encode_reply,
    encode_text,
    end_of_turn,
    prompt_text,
)
from forge_sft.formatting import to_sequence
from forge_testing.byte_tokenizer import byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TRL = find_spec("trl")
if _TRL is None or _TRL.origin is None:
    pytest.skip("TRL is not installed (scripts/test.sh installs it)", allow_module_level=True)
FOLDER = Path(_TRL.origin).parent / "chat_templates"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

SPECIAL = re.compile(r"<\|[\w/]+\|?>|<[\w/]+\|>|<｜[^｜]+｜>|\[g?/?[A-Z]+\]|</?[a-z_]+>")
"""What looks like a special token in a template."""


def tokenizer_of(name: str, **options: Any) -> PreTrainedTokenizerBase:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    added = sorted(set(SPECIAL.findall(template)))
    return byte_tokenizer(
        chat_template=template, bos="<s>", eos="</s>", pad="</s>", added=added, **options
    )


def texts(task: Task, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Text of the given and of the learned tokens of a task's row."""
    row = to_sequence(task, tokenizer)
    assert row is not None
    given = row.loss_mask.tolist().index(True)
    assert all(row.loss_mask[given:])
    return tokenizer.decode(row.tokens[:given]), tokenizer.decode(row.tokens[given:])


QUESTION = (Message("user", "What is 1+1?"),)
ANSWER = " It is 2.\n"

LEARNED = {
    "cohere": "It is 2.<|END_OF_TURN_TOKEN|>",
    "cohere2": " It is 2.\n<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "deepseek_r1_distill": None,
    "deepseekv3": None,
    "diffusion_gemma": "It is 2.<turn|>",
    "gemma": "It is 2.<end_of_turn>",
    "gemma3": "It is 2.<end_of_turn>",
    "gemma4": "It is 2.<turn|>",
    "gemma4_v2": "It is 2.<turn|>",
    "gemma4_v3": "It is 2.<turn|>",
    "gemma4_v4": "It is 2.<turn|>",
    "gemma4_v5": "It is 2.<turn|>",
    "glm4moe": "\n<think></think>\nIt is 2.</s>",
    "gptoss": "<|channel|>final<|message|> It is 2.\n<|return|>",
    "idefics3": None,
    "lfm2": " It is 2.\n<|im_end|>",
    "lfm2_2_5": " It is 2.\n<|im_end|>",
    "lfm2_2_5_v2": " It is 2.\n<|im_end|>",
    "lfm2_2_5_vl": " It is 2.\n<|im_end|>",
    "lfm2_v2": " It is 2.\n<|im_end|>",
    "llama3": "It is 2.<|eot_id|>",
    "llama3_1": "It is 2.<|eot_id|>",
    "llama3_2": "It is 2.<|eot_id|>",
    "llava_next": None,
    "muse_glimmer": " to=user<|message|> It is 2.\n<|eot|>",
    "nemotron_3_5_lightning": None,
    "nemotron_3_nano": None,
    "nemotron_3_super": None,
    "nemotron_3_ultra": None,
    "phi3": " It is 2.\n<|end|>",
    "phi3_5": " It is 2.\n<|end|>",
    "qwen2_5": " It is 2.\n<|im_end|>",
    "qwen2_5_vl": " It is 2.\n<|im_end|>",
    "qwen3": "<think>\n\n</think>\n\n It is 2.\n<|im_end|>",
    "qwen3_5_nothink": "It is 2.<|im_end|>",
    "qwen3_5_think": "\n</think>\n\nIt is 2.<|im_end|>",
    "qwen3_6": "\n</think>\n\nIt is 2.<|im_end|>",
    "qwen3_8": "\n</think>\n\nIt is 2.<|im_end|>",
    "qwen3_instruct_2507": " It is 2.\n<|im_end|>",
    "qwen3_vl": " It is 2.\n<|im_end|>",
    "smolvlm": None,
}
"""What each model is to learn of ``ANSWER``; None: the row is refused."""


def test_every_template_has_an_expectation() -> None:
    assert LEARNED.keys() == {name for name in TEMPLATES if not name.endswith("_training")}


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_of_an_answer(name: str) -> None:
    tokenizer = tokenizer_of(name)
    task = Task("data.jsonl:3", QUESTION, response=ANSWER)
    if LEARNED[name] is None:
        with pytest.raises(DataError, match=r"^task 'data.jsonl:3': the model's chat") as caught:
            to_sequence(task, tokenizer)
        assert "\n" not in str(caught.value)
    else:
        assert texts(task, tokenizer)[1] == LEARNED[name]


CHATS = {
    "question": QUESTION,
    "system": (Message("system", "Be brief."), *QUESTION),
    "turns": (*QUESTION, Message("assistant", "2"), Message("user", "Sure?")),
    "thought": (*QUESTION, Message("assistant", "<think>\nx\n</think>\n\n2"), *QUESTION),
}
ANSWERS = {
    "answer": Message("assistant", ANSWER),
    "empty": Message("assistant", ""),
    "thought": Message("assistant", "<think>\n1 and 1\n</think>\n\n2"),
    "reasoning": Message("assistant", "2", {"reasoning_content": "1 and 1"}),
    "thinking": Message("assistant", "2", {"thinking": "1 and 1"}),
    "call": Message(
        "assistant",
        "",
        {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_row_is_the_templates_rendering_or_is_refused(name: str) -> None:
    tokenizer = tokenizer_of(name)
    learned_some = False
    for chat_name, chat in CHATS.items():
        for answer_name, answer in ANSWERS.items():
            case = f"{name}, {chat_name}, {answer_name}"
            try:
                row = to_sequence(Task("t", chat, response=answer), tokenizer)
            except DataError:
                continue
            learned_some = True
            assert row is not None
            plain = [{"role": m.role, "content": m.content, **m.extra} for m in (*chat, answer)]
            whole = tokenizer.apply_chat_template(plain, tokenize=False)
            prompt = tokenizer.apply_chat_template(
                plain[:-1], tokenize=False, add_generation_prompt=True
            )
            assert isinstance(whole, str)
            assert isinstance(prompt, str)
            text = tokenizer.decode(row.tokens)
            # The row is the rendering up to the end of the turn, in the tokenizer's own tokens.
            if name.startswith("glm4moe"):  # the next user's token ends a turn, so EOS is added
                text = text.removesuffix("</s>")
            assert whole.startswith(text), case
            tokens = encode_text(text, tokenizer)
            assert list(row.tokens) in (tokens, [*tokens, tokenizer.eos_token_id]), case
            # What is given is what generation sees, and everything behind it is learned.
            given = len(encode_prompt(chat, tokenizer))
            assert list(row.tokens[:given]) == encode_text(prompt, tokenizer), case
            assert list(row.loss_mask) == [False] * given + [True] * (len(row.tokens) - given), case
            # The turn's end is learned, once, and nothing that the answer says is missing.
            learned = list(row.tokens[given:])
            assert learned.count(learned[-1]) == 1, case
            assert learned[-1] in tokenizer.added_tokens_decoder, case
            said = tokenizer.decode(learned)
            for part in re.split("</?think>", answer.content):
                assert part.strip() in said, case
            for key in ("reasoning_content", "thinking"):
                assert answer.extra.get(key, "") in said, case
            assert "tool_calls" not in answer.extra or "add" in said, case
            left = whole[len(text) :]
            for token in tokenizer.added_tokens_decoder.values():
                assert str(token) not in left or str(token) == tokenizer.eos_token, case
    assert learned_some == (name not in REFUSED)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_further_turn_of_an_episode_is_the_templates_rendering_or_is_refused(name: str) -> None:
    tokenizer = tokenizer_of(name)
    stop = end_of_turn(tokenizer) or tokenizer.eos_token_id
    for chat in CHATS.values():
        for said in ("It is 2.", "x</think>\n\nIt is 2.", "<think>\nx\n</think>\n\nIt is 2."):
            spoken = (*chat, Message("assistant", said))
            try:
                prompt = encode_prompt(chat, tokenizer)
                reply = encode_reply(spoken, [Message("user", "Sure?")], tokenizer, last_token=stop)
            except DataError:
                continue
            tokens = [*prompt, *encode_text(said, tokenizer), stop, *reply]
            whole = prompt_text((*spoken, Message("user", "Sure?")), tokenizer)
            assert tokenizer.decode(tokens) == whole


PARTS_ONLY = ("idefics3", "llava_next", "smolvlm")
"""They want a message's content in parts, and would drop plain text."""

REFUSED = {
    *(name for name in TEMPLATES if name.removesuffix("_training") in PARTS_ONLY),
    *("deepseek_r1_distill", "deepseekv3", "deepseekv3_training"),
}
"""Templates without any row. DeepSeek's prompt opens a thought and its rendering has none."""
