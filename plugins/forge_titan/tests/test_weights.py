"""Model folders in Hugging Face layout, in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from forge_core import (
    BuildContext,
    DistributedSection,
    ModelSection,
    TrainingSection,
    TrainSequence,
)
from forge_models.folder import load_tokenizer, materialize
from forge_testing.conformance.trainer import LOSSES, OPTIMIZER, SCHEDULE, TRAINING, make_sequences
from forge_testing.context import adamw
from forge_testing.policies import policy_init
from forge_titan import hf_weights
from forge_titan.plugin import TRAINER
from forge_titan.settings import TitanTrainerSettings
from forge_titan.trainer import TitanTrainer

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 12, "rope_theta": 1e6, "tie_word_embeddings": False},
    "qwen3-tied": {"head_dim": 16, "tie_word_embeddings": True},
    "llama": {"rms_norm_eps": 1e-5, "num_key_value_heads": 1, "tie_word_embeddings": False},
    "llama-tied": {"tie_word_embeddings": True, "head_dim": 16},
}


def make_folder(name: str, folder: Path) -> Path:
    init = policy_init(name.split("-")[0], initializer_range=0.1, **MODELS[name])
    return materialize(ModelSection(init=init), folder, seed=1)


def make(folder: Path, **sections: Any) -> TitanTrainer:
    context = BuildContext(
        model=ModelSection(path=folder, dtype=sections.pop("dtype", "float32")),
        training=sections.pop("training", TRAINING),
        optimizer=sections.pop("optimizer", OPTIMIZER),
        distributed=DistributedSection(**sections),
        loss=LOSSES["nll"],
        schedule=SCHEDULE,
    )
    trainer = TRAINER.build(TitanTrainerSettings(device="cpu"), context)
    assert isinstance(trainer, TitanTrainer)
    return trainer


@pytest.mark.parametrize("name", MODELS)
async def test_logits_survive_the_way_in_and_out(name: str, tmp_path: Path) -> None:
    folder = make_folder(name, tmp_path / "in")
    trainer = make(folder)
    sequences = make_sequences(folder)
    await trainer.train_step([sequences])
    out = tmp_path / "out"
    out.mkdir()
    await trainer.save(out)
    rows = await trainer.logprobs(sequences)
    await trainer.close()
    model = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    assert load_tokenizer(out).get_vocab() == load_tokenizer(folder).get_vocab()
    for sequence, row in zip(sequences, rows, strict=True):
        tokens = torch.tensor(sequence.tokens).long()
        log_p = model(tokens[None]).logits[0, :-1].log_softmax(-1)
        expected = log_p.gather(1, tokens[1:, None])[:, 0]
        trained = torch.tensor(sequence.loss_mask)[1:]
        difference = (torch.tensor(row)[1:] - expected)[trained].abs().max()
        assert difference < 1e-4
    again = make(out)
    assert all(map(np.array_equal, await again.logprobs(sequences), rows))
    await again.close()


async def test_a_folder_in_several_files_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("qwen3", tmp_path / "in")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    load_tokenizer(folder).save_pretrained(tmp_path / "parts")
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    trainer = make(tmp_path / "parts")
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(hf_weights, "SHARD_BYTES", 10_000)
    await trainer.save(out)
    await trainer.close()
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 1
    saved = AutoModelForCausalLM.from_pretrained(out).state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(saved[key], value)


async def test_bfloat16_weights_train_and_stay_bfloat16(tmp_path: Path) -> None:
    folder = make_folder("qwen3", tmp_path / "in")
    trainer = make(folder, dtype="bfloat16")
    result = await trainer.train_step([make_sequences(folder)])
    assert 1 < result.loss < 5
    out = tmp_path / "out"
    out.mkdir()
    await trainer.save(out)
    await trainer.close()
    saved = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert saved.dtype == torch.bfloat16


async def test_the_padding_token_is_trained_as_transformers_does(tmp_path: Path) -> None:
    """Its embedding gets no gradient; the others' do."""
    folder = make_folder("qwen3", tmp_path / "in")
    training = TrainingSection(learning_rate=1e-2, steps=1)
    trainer = make(folder, training=training, optimizer=adamw(weight_decay=0.0))
    before = trainer.policy.state()["tok_embeddings.weight"].clone()
    await trainer.train_step([[TrainSequence([0, 5, 0, 3], [False, True, True, True])]])
    changed = (trainer.policy.state()["tok_embeddings.weight"] != before).any(1)
    assert changed.nonzero().flatten().tolist() == [5]
    await trainer.close()
