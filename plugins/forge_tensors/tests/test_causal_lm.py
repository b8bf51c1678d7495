"""Every kind of causal language model gets the same scores as when run one sequence at a time."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from forge_core import OutputNeeds, TrainSequence, UsageError
from forge_tensors.batch import PackedBatch, pack
from forge_tensors.causal_lm import CausalLM

COMMON = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
}
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "qwen3": (True, {"tie_word_embeddings": True}),
    "llama": (True, {}),
    "cohere": (True, {"logit_scale": 0.5}),
    "granite": (True, {"logits_scaling": 4.0}),
    "gpt2": (True, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gemma2": (False, {"sliding_window": 8, "final_logit_softcapping": 5.0}),
    "mistral": (False, {"sliding_window": 8}),
    "bloom": (False, {"n_layer": 2, "n_head": 4}),
    "mamba": (False, {}),
}
"""Model type -> whether it can be run packed, and config beside ``COMMON``."""


ENTROPY = OutputNeeds(entropy=True)


def _model(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **COMMON, **KINDS[kind][1])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def _sequences() -> list[TrainSequence]:
    draw = random.Random(0)
    return [
        TrainSequence(
            [draw.randrange(50) for _ in range(length)],
            [False, *(draw.random() < 0.7 for _ in range(length - 1))],
        )
        for length in (9, 3, 20, 1, 20, 41)
    ]


def _plain(
    model: PreTrainedModel, sequences: list[TrainSequence], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs, entropies = [], []
    for sequence in sequences:
        tokens = torch.tensor(sequence.tokens)
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        log_p = (logits / temperature).log_softmax(-1)
        trained = torch.tensor(sequence.loss_mask)[1:]
        logprobs.append(log_p.gather(1, tokens[1:, None])[:, 0][trained])
        entropies.append(-(log_p.exp() * log_p).sum(-1)[trained])
    return torch.cat(logprobs), torch.cat(entropies)


def _gradients(model: PreTrainedModel, value: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    value.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def _quietly(model: PreTrainedModel, **options: Any) -> CausalLM:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CausalLM(model, **options)


def _check(model: PreTrainedModel, lm: CausalLM, expected: Any, gradients: Any) -> None:
    logprobs, entropies, *_ = lm.score(pack(_sequences()), temperature=0.8, needs=ENTROPY)
    assert entropies is not None
    torch.testing.assert_close(logprobs, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, expected[1], rtol=1e-5, atol=1e-5)
    actual = _gradients(model, logprobs.sum() + 0.3 * entropies.sum())
    assert actual.keys() == gradients.keys()
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_gradients_are_those_of_a_plain_forward_pass(kind: str) -> None:
    model = _model(kind)
    expected = _plain(model, _sequences(), 0.8)
    gradients = _gradients(model, expected[0].sum() + 0.3 * expected[1].sum())
    expected = tuple(x.detach() for x in expected)
    lm = _quietly(model)
    assert lm.packed == KINDS[kind][0]
    assert lm.chunked
    _check(model, lm, expected, gradients)


def _terms(log_softmax: torch.Tensor, tokens: slice | torch.Tensor) -> torch.Tensor:
    return log_softmax.exp().square().sum(-1) * torch.arange(200.0)[tokens]


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "own head"])
def test_what_else_a_loss_asks_for_is_that_of_a_plain_forward_pass(kind: str) -> None:
    """Packed, padded, and by the model's own forward pass."""
    model, scored = (_model("llama" if kind == "own head" else kind) for _ in range(2))
    if kind == "own head":
        for each in (model, scored):
            each.set_output_embeddings(torch.nn.Sequential(each.lm_head))
    lm = _quietly(scored)
    needs = OutputNeeds(top_logprobs=3, log_softmax=True, hidden_states=lm.chunked)
    scores = lm.score(pack(_sequences()), temperature=0.8, needs=needs, terms=_terms)
    plain, below = [], []
    for sequence in _sequences():
        output = model(
            input_ids=torch.tensor(sequence.tokens)[None],
            use_cache=False,
            output_hidden_states=True,
        )
        trained = torch.tensor(sequence.loss_mask)[1:]
        plain.append((output.logits[0, :-1] / 0.8).log_softmax(-1)[trained])
        below.append(output.hidden_states[-1][0, :-1][trained])
    log_p = torch.cat(plain)
    top = log_p.topk(3)
    assert scores.top_logprobs is not None
    assert scores.terms is not None
    assert torch.equal(scores.top_tokens, top.indices)  # type: ignore[arg-type]
    expected = [top.values, _terms(log_p, slice(0, len(log_p)))]
    actual = [scores.top_logprobs, scores.terms]
    if lm.chunked:
        assert scores.hidden_states is not None
        expected, actual = [*expected, torch.cat(below)], [*actual, scores.hidden_states]
    else:
        with pytest.raises(UsageError, match="hidden_states or values"):
            lm.score(pack(_sequences()), needs=OutputNeeds(hidden_states=True))
    gradients = []
    for owner, values in ((model, expected), (scored, actual)):
        gradients.append(_gradients(owner, sum(value.sum() for value in values)))  # type: ignore[arg-type]
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=5e-5)


def test_a_model_with_a_head_of_its_own_is_run_as_it_is() -> None:
    model = _model("llama")
    model.lm_head.register_forward_hook(lambda module, inputs, output: output.sin() * 2)
    expected = _plain(model, _sequences(), 0.8)
    gradients = _gradients(model, expected[0].sum() + 0.3 * expected[1].sum())
    model.set_output_embeddings(torch.nn.Sequential(model.lm_head))
    with pytest.warns(UserWarning, match="its own forward pass is used"):
        lm = CausalLM(model)
    assert not lm.chunked
    renamed = {n.replace("lm_head", "lm_head.0"): g for n, g in gradients.items()}
    _check(model, lm, tuple(x.detach() for x in expected), renamed)


def test_a_model_that_cannot_be_packed_says_so_and_keeps_its_attention() -> None:
    model = _model("mistral")
    own = model.config._attn_implementation
    with pytest.warns(UserWarning, match="mistral: cannot run packed"):
        CausalLM(model)
    assert model.config._attn_implementation == own


def test_padding_can_be_chosen() -> None:
    model = _model("qwen3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lm = CausalLM(model, packed=False)
    expected, _ = _plain(model, _sequences(), 1.0)
    torch.testing.assert_close(lm.score(pack(_sequences()))[0], expected, rtol=1e-5, atol=1e-5)


def test_nothing_trained_gives_nothing() -> None:
    batch: PackedBatch = pack([TrainSequence([1, 2], [False, False])])
    logprobs, entropies, *_ = _quietly(_model("qwen3")).score(batch, needs=ENTROPY)
    assert logprobs.shape == (0,)
    assert logprobs.requires_grad
    assert entropies is not None


def test_no_padded_token_is_computed() -> None:
    model = _model("qwen3")
    lm = _quietly(model)
    seen: list[int] = []
    model.model.layers[0].mlp.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].shape[:-1].numel())
    )
    lm.score(pack(_sequences()))
    assert seen == [9 + 3 + 20 + 1 + 20 + 41]


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 4.0, 8.0, 16.0],
}


@pytest.mark.parametrize("kind", ["llama", "phi3"])
@pytest.mark.parametrize("packed", [True, False])
def test_frequencies_that_depend_on_length_are_those_of_each_sequence(
    kind: str, packed: bool
) -> None:
    """Transformers picks one set of frequencies for a pass, by its longest sequence."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        **COMMON,
        original_max_position_embeddings=16,
        rope_parameters=dict(LONGROPE),  # which transformers changes
        sliding_window=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():  # wide enough for positions to matter
            weight.mul_(5)
    sequences = _sequences()  # of 1 to 41 tokens, in no order
    expected, expected_entropy = _plain(model, sequences, 0.7)
    gradients = _gradients(model, (expected * expected.detach()).sum())
    scored = CausalLM(model, packed=packed)
    assert scored.packed == packed
    actual, entropy, *_ = scored.score(pack(sequences), temperature=0.7, needs=ENTROPY)
    assert entropy is not None
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-5)
    for name, gradient in _gradients(scored.model, (actual * actual.detach()).sum()).items():
        expected = gradients[name]
        bound = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(gradient, expected, rtol=0, atol=bound)
