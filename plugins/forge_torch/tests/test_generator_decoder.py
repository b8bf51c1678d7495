"""Which models are decoded, by which way, and what happens when one proves wrong."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from forge_core import DataError
from forge_models.characters import character_tokenizer
from forge_tensors.checksum import checksum
from forge_torch.generator import llama_decoder
from forge_torch.generator.cache import KVCache
from forge_torch.generator.decoder import choose_decoder
from forge_torch.generator.hf_decoder import HFDecoder
from forge_torch.generator.llama_decoder import LlamaDecoder
from forge_torch.generator.self_test import SelfTest, ordinary_tokens

SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

TOKENS = [3 + (11 * index) % 27 for index in range(24)]
"""What self-tests run on: ids of ordinary tokens."""


def model(kind: str, **config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | config)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros
                parameter += 0.3 * torch.randn_like(parameter)
            assert name
    return made


FAST = [
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("qwen2", {}),
    ("llama", {"attention_bias": True, "num_key_value_heads": 1}),
    ("mistral", {"sliding_window": None}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
]
GENERAL = [
    ("mistral", {"sliding_window": 3}),
    ("llama", {"mlp_bias": True}),
    ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 3}),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("bloom", {}),
    ("mixtral", {"num_local_experts": 2}),
]


@pytest.mark.parametrize(
    ("kind", "config", "way"),
    [(*case, LlamaDecoder) for case in FAST] + [(*case, HFDecoder) for case in GENERAL],
)
def test_the_way_is_chosen_and_computes_the_models_logits(
    kind: str, config: dict[str, Any], way: type
) -> None:
    original = model(kind, **config)
    decoder = choose_decoder(copy.deepcopy(original), lambda: pytest.fail("reloaded"), TOKENS)
    assert type(decoder) is way
    # Longer than the probes at load: several windows, rows of unlike length, one decoded by itself.
    sequences = torch.randint(3, 30, (3, 40), generator=torch.Generator().manual_seed(1))
    lengths = [9, 2, 5]
    with torch.inference_mode():
        cache = decoder.new_cache()
        cache.begin(lengths)
        prompts = torch.zeros(3, 9, dtype=torch.int64)
        for row, length in enumerate(lengths):
            prompts[row, 9 - length :] = sequences[row, :length]
        logits = [decoder.forward(prompts, cache)]
        for step in range(20):
            cache.extend()
            column = torch.stack([sequences[row, lengths[row] + step] for row in range(3)])
            logits.append(decoder.forward(column.unsqueeze(1), cache))
        found = torch.stack(logits, dim=1)
        for row, length in enumerate(lengths):
            whole = original(input_ids=sequences[row : row + 1, : length + 20]).logits[0]
            torch.testing.assert_close(found[row], whole[length - 1 :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "config"), [FAST[0], FAST[1], FAST[3], GENERAL[0]])
def test_weights_are_found_by_their_hugging_face_names(kind: str, config: dict[str, Any]) -> None:
    original = model(kind, **config)
    decoder = choose_decoder(copy.deepcopy(original), lambda: pytest.fail("reloaded"), TOKENS)
    views, shapes = decoder.weights(), decoder.shapes()
    expected = original.state_dict()
    assert set(views) == set(shapes) == set(expected)
    assert checksum((name, view.reshape(shapes[name])) for name, view in views.items()) == checksum(
        expected.items()
    )


def test_weights_taken_over_are_held_once() -> None:
    original = model("qwen3")
    size = sum(parameter.numel() for parameter in original.parameters())
    with torch.inference_mode():
        decoder = LlamaDecoder(original)
    left = sum(parameter.numel() for parameter in original.model.layers.parameters())
    assert left == 0
    stores = {
        view.untyped_storage().data_ptr(): view.untyped_storage().nbytes()
        for view in decoder.weights().values()
    }
    assert sum(stores.values()) == 4 * size


def test_a_wrong_fast_way_is_found_out_and_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = model("gemma2", head_dim=8, query_pre_attn_scalar=8)
    monkeypatch.setattr(LlamaDecoder, "supports", staticmethod(lambda _: True))
    with caplog.at_level(logging.WARNING):
        decoder = choose_decoder(copy.deepcopy(original), lambda: copy.deepcopy(original), TOKENS)
    assert type(decoder) is HFDecoder
    assert "decodes gemma2 the slow way" in caplog.text


def test_a_model_that_remembers_more_than_keys_and_values_is_refused() -> None:
    recurrent = model("mamba")
    with pytest.raises(DataError, match="generator torch cannot decode mamba models"):
        choose_decoder(recurrent, lambda: pytest.fail("reloaded"), TOKENS)


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_bfloat16_stays_within_its_rounding(kind: str) -> None:
    half = model(kind).to(torch.bfloat16)
    decoder = choose_decoder(copy.deepcopy(half), lambda: pytest.fail("reloaded"), TOKENS)
    assert decoder.weights()["model.norm.weight"].dtype == torch.bfloat16


# Faults that a decoder might have, each planted in the fast way.


def _late_by_one(_: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LlamaDecoder._rotation

    def rotation(self: LlamaDecoder, cache: KVCache) -> torch.Tensor:
        if cache.new_columns > 1:
            return right(self, cache)
        return F.embedding(cache.positions().view(-1, 1) + 1, self._rotations)

    monkeypatch.setattr(LlamaDecoder, "_rotation", rotation)


def _unscaled(broken: PreTrainedModel, _: pytest.MonkeyPatch) -> None:
    broken.model.layers[0].self_attn.scaling = 1.0


def _swapped_heads(broken: PreTrainedModel, _: pytest.MonkeyPatch) -> None:
    size = broken.model.layers[0].self_attn.head_dim
    first_two = broken.model.layers[0].self_attn.o_proj.weight.data[:, : 2 * size]
    first_two.copy_(first_two.roll(size, 1))


def _no_norm(broken: PreTrainedModel, _: pytest.MonkeyPatch) -> None:
    broken.model.norm.weight.data.fill_(1)


def _another_frequency(broken: PreTrainedModel, _: pytest.MonkeyPatch) -> None:
    broken.model.rotary_emb.inv_freq.mul_(0.8)


def _padding_is_seen(_: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def mask(cache: KVCache) -> torch.Tensor:
        causal = torch.ones(cache.length, cache.length, dtype=torch.bool).tril_()
        return causal.expand(len(cache.starts), 1, -1, -1)

    monkeypatch.setattr(llama_decoder, "_causal_mask", mask)


@pytest.mark.parametrize(
    "plant",
    [_late_by_one, _unscaled, _swapped_heads, _no_norm, _another_frequency, _padding_is_seen],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "config"), [FAST[0], FAST[3]])
def test_a_fault_is_found_in_either_precision(
    kind: str,
    config: dict[str, Any],
    dtype: torch.dtype,
    plant: Callable[[PreTrainedModel, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = model(kind, **config).to(dtype)
    with torch.inference_mode():
        test = SelfTest(original, TOKENS)
        assert test.fault(LlamaDecoder(copy.deepcopy(original))) is None
        broken = copy.deepcopy(original)
        plant(broken, monkeypatch)
        fault = test.fault(LlamaDecoder(broken))
    assert fault is not None
    assert "times what rounding does" in fault


def test_logits_that_share_an_offset_hide_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the largest logit would: it grows with what softmax does not see."""
    original = model("llama").to(torch.bfloat16)
    with torch.no_grad():
        original.model.embed_tokens.weight[:, 0] = 3
        original.lm_head.weight[:, 0] = 8
    broken = copy.deepcopy(original)
    _unscaled(broken, monkeypatch)
    with torch.inference_mode():
        assert SelfTest(original, TOKENS).fault(LlamaDecoder(broken)) is not None


def test_logits_that_are_not_finite_are_a_fault() -> None:
    original = model("llama")
    broken = copy.deepcopy(original)
    broken.model.norm.weight.data[0] = torch.nan
    with torch.inference_mode():
        assert SelfTest(original, TOKENS).fault(LlamaDecoder(broken)) is not None


def test_it_runs_on_tokens_of_ordinary_text() -> None:
    """Special tokens are what trained models treat unlike any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<bos>", "<eos>", "<tool>", "<user>", "<assistant>", "<system>", "<x>"]
    vocabulary = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokens = ordinary_tokens(tokenizer, len(vocabulary))
    assert min(tokens) >= len(specials)
    assert tokenizer.decode(tokens).startswith("The quick brown fox")
    # A small alphabet has no text to encode: its own characters do.
    characters = character_tokenizer("0123456789+=")
    tokens = ordinary_tokens(characters, len(characters))
    assert len(tokens) >= 24
    assert len(set(tokens)) > 6
    assert set(tokens) <= set(range(2, 14))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("kind", "config"), [FAST[0], GENERAL[0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_computes_the_same(kind: str, config: dict[str, Any], dtype: torch.dtype) -> None:
    choose_decoder(model(kind, **config).to("cuda", dtype), lambda: pytest.fail("reloaded"), TOKENS)
