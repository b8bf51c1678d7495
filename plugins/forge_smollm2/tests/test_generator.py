"""Generator ``torch`` on a real model: against plain forward passes through transformers."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_core import Completion, Message, Sampling
from forge_models.folder import load_model
from forge_models.prompts import encode_prompt
from forge_testing.command import run_as_process, run_in_process
from forge_testing.context import bare_context
from forge_torch.generator.generator import TorchGenerator
from forge_torch.settings import TorchGeneratorSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytestmark = pytest.mark.real

TEXTS = (
    "Hi!",
    "What is 27 + 15?",
    "Write one sentence about the sea, then one about the mountains, and compare the two.",
    "Name three prime numbers between 10 and 30 and say why each of them is prime.",
)


@pytest.fixture(scope="module")
def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Chats and plain text of different lengths, with and without special tokens."""
    chats = [encode_prompt((Message("user", text),), tokenizer) for text in TEXTS]
    return [*chats, encode_prompt("The quick brown fox", tokenizer)]


def sample(folder: Path, dtype: str, prompts: list[list[int]], **sampling: Any) -> list[Completion]:
    """One completion of each prompt, all in one batch."""
    context = bare_context()
    context = replace(
        context, model=context.model.model_copy(update={"path": folder, "dtype": dtype})
    )

    async def generate() -> list[Completion]:
        generator = TorchGenerator(TorchGeneratorSettings(device="cpu"), context)
        try:
            answers = await asyncio.gather(
                *(generator.generate(prompt, Sampling(n=1, **sampling)) for prompt in prompts)
            )
        finally:
            await generator.close()
        return [completion for (completion,) in answers]

    return asyncio.run(generate())


def forward_logprobs(model: PreTrainedModel, prompt: list[int], completion: Completion) -> Any:
    """Of the whole vocabulary at each token of the completion, by one forward pass. [T, V]"""
    import torch

    tokens = torch.tensor([[*prompt, *completion.tokens]])
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def differences(
    model: PreTrainedModel, prompts: list[list[int]], completions: list[Completion]
) -> Any:
    """Of each sampled token's logprob, between generator and forward pass."""
    import torch

    return torch.cat(
        [
            (
                forward_logprobs(model, prompt, completion)
                .gather(1, torch.tensor(completion.tokens).unsqueeze(1))
                .squeeze(1)
                - torch.tensor(completion.logprobs)
            ).abs()
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
    )


def test_greedy_tokens_are_the_forward_passs_and_the_fast_way_is_taken(
    smollm2: Path,
    model: PreTrainedModel,
    prompts: list[list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        completions = sample(smollm2, "float32", prompts, temperature=0.0, max_tokens=12)
    assert "the slow way" not in caplog.text
    for prompt, completion in zip(prompts, completions, strict=True):
        best = forward_logprobs(model, prompt, completion).argmax(-1)
        assert list(completion.tokens) == best.tolist()


def test_logprobs_are_the_forward_passs(
    smollm2: Path, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    completions = sample(smollm2, "float32", prompts, temperature=1.0, max_tokens=16, seed=7)
    assert float(differences(model, prompts, completions).max()) < 5e-3


def test_in_bfloat16_logprobs_are_the_forward_passs_to_its_rounding(
    smollm2: Path, prompts: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        completions = sample(smollm2, "bfloat16", prompts, temperature=1.0, max_tokens=16, seed=7)
    assert "the slow way" not in caplog.text
    difference = differences(load_model(smollm2, "bfloat16"), prompts, completions)
    assert float(difference.mean()) < 0.05
    assert float(difference.max()) < 0.5


def test_generate_and_chat_answer_through_the_template(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--temperature", "0", "--max-tokens", "16")
    question = "What is the capital of France?"
    result = run_in_process("generate", str(smollm2), question, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{question}\n"))
    result = run_in_process("chat", str(smollm2), *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"


def test_vllm_computes_the_same(
    smollm2: Path, model: PreTrainedModel, prompts: list[list[int]], tmp_path: Path
) -> None:
    pytest.importorskip("vllm")
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    result = run_as_process(
        *("generate", str(smollm2), "--input", str(file), "--json", "--generator", "vllm"),
        *("--temperature", "1", "--max-tokens", "8", "--seed", "7"),
        *("generator.engine.max_model_len=256", "generator.engine.kv_cache_memory_bytes=67108864"),
        cwd=tmp_path,
        timeout=600,
    )
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    completions = [
        Completion(
            tokens=tuple(line["tokens"]),
            logprobs=tuple(line["logprobs"]),
            versions=(0,) * len(line["tokens"]),
            finish_reason=line["finish_reason"],
        )
        for line in lines
    ]
    assert float(differences(model, prompts[:4], completions).max()) < 5e-3
