"""``forge plan``: what a config would take, from arithmetic alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forge_core import Forge, RecipeComponent, Settings, TokenLimit, hookimpl
from forge_models.shape import FAMILIES, shape_of
from forge_testing.shapes import LLAMA_31_8B


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_as_transformers_makes_them(model_type: str, tied: bool) -> None:
    config = AutoConfig.for_model(
        model_type,
        vocab_size=77,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=80,
        tie_word_embeddings=tied,
    )
    shape = shape_of(config.to_dict())
    assert shape is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_shape_of_a_known_model() -> None:
    shape = shape_of(LLAMA_31_8B)
    assert shape is not None
    assert shape.parameters == 8_030_261_248  # Llama 3.1 8B


@pytest.mark.parametrize(
    "config",
    [
        {**LLAMA_31_8B, "model_type": "gemma3"},
        {**LLAMA_31_8B, "attention_bias": True},
        {name: value for name, value in LLAMA_31_8B.items() if name != "hidden_size"},
    ],
)
def test_a_model_of_unknown_shape(config: dict[str, Any]) -> None:
    assert shape_of(config) is None


def test_what_the_quickstart_takes(run_forge: Any) -> None:
    result = run_forge("plan", "quickstart")
    assert (result.exit_code, result.stderr) == (0, "")
    sft, grpo = re.split(r"^stage ", result.stdout, flags=re.M)[1:]
    assert "trainer     torch, 1 replica of 1 rank" in sft
    assert "generator   torch, 1 replica of 1 rank" in sft  # for the held-out score
    assert "step        256 sequences, each of at most 64 tokens (the model's window)" in sft
    assert "staleness" not in sft
    assert (
        "step        512 sequences, each a prompt and a completion of at most 4 tokens "
        "(sampling.max_tokens)" in grpo
    )
    assert "2,048 tokens at a time; prompts and further turns come on top" in grpo
    assert "staleness   0 (strictly on-policy)" in grpo


def test_how_stale_a_token_may_be(run_forge: Any) -> None:
    result = run_forge("plan", "quickstart", "stages.grpo.recipe.max_staleness=2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "staleness   2 (optimizer steps at most)" in result.stdout


def test_a_small_model_is_told_in_mib(run_forge: Any) -> None:
    result = run_forge("plan", "quickstart")
    assert result.stdout.count("MiB of the trainer's fullest rank") == 2
    sizes = [float(size) for size in re.findall(r"^    \w[\w ]+? +([\d.]+)", result.stdout, re.M)]
    assert len(sizes) == 10
    assert all(size > 0 for size in sizes)


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        (["generator.max_model_len=16"], "16 tokens (generator.max_model_len)"),
        (["generator.max_model_len=64"], "64 tokens (generator.max_model_len)"),
        (["sampling.max_tokens=64"], "64 tokens (the model's window)"),
        (
            ["generator.use=vllm", "generator.engine.max_model_len=24"],
            "24 tokens (generator.engine.max_model_len)",
        ),
    ],
)
def test_what_is_sampled_fits_into_the_samplers_window(
    run_forge: Any, overrides: list[str], longest: str
) -> None:
    result = run_forge("plan", "quickstart", *overrides)
    assert (result.exit_code, result.stderr) == (0, "")
    sft, grpo = re.split(r"^stage ", result.stdout, flags=re.M)[1:]
    assert "64 tokens (the model's window)" in sft
    assert f"step        512 sequences, each of at most {longest}" in grpo


@pytest.mark.parametrize(("device", "chunk"), [("cpu", 64 / 1024), ("auto", 2048 * 128256 / 2**28)])
def test_memory_of_a_known_model(run_forge: Any, tmp_path: Path, device: str, chunk: float) -> None:
    """Llama 3.1 8B in bfloat16: 16 bytes a parameter with AdamW in float32, and the casts."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_31_8B))
    result = run_forge(
        *("plan", f"model.path={tmp_path}", "recipe.max_length=2048", "training.batch_size=1"),
        *("trainer.gradient_checkpointing=true", "distributed.precision=bf16"),
        f"trainer.device={device}",
    )
    assert (result.exit_code, result.stderr) == (0, "")
    terms = dict(re.findall(r"^    (\w[\w ]+?) +([\d.]+)", result.stdout, re.M))
    parameters = 8_030_261_248 * 4 / 2**30
    assert float(terms["parameters"]) == pytest.approx(parameters, abs=1e-3)
    assert float(terms["gradients"]) == pytest.approx(parameters, abs=1e-3)
    assert float(terms["optimizer"]) == pytest.approx(2 * parameters, abs=1e-3)
    assert float(terms["total on the device"]) == pytest.approx(
        sum(float(size) for name, size in terms.items() if not name.startswith("total")), abs=5e-3
    )
    # 32 layers keep 2048 x 4096 numbers of two bytes each; one layer keeps all it makes.
    # A chunk of logits is larger where a GPU may compute them.
    assert 0.5 < float(terms["activations"]) - 3 * chunk < 1.2


def test_the_reference_is_counted_when_the_loss_needs_it(run_forge: Any) -> None:
    plain = run_forge("plan", "quickstart").stdout
    anchored = run_forge("plan", "quickstart", "stages.grpo.loss.kl_coef=0.1")
    assert anchored.exit_code == 0, anchored.stderr
    assert "reference" not in plain
    assert anchored.stdout.count("reference") == 1


def test_a_reference_of_its_own_has_a_place_and_holds_weights_alone(run_forge: Any) -> None:
    result = run_forge(
        *("plan", "quickstart", "stages.grpo.loss.kl_coef=0.1", "stages.grpo.reference.use=titan"),
        *("stages.grpo.reference.procs=2", "reward_workers.replicas=3"),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    grpo = result.stdout.partition("stage grpo")[2]
    assert "reference   titan, 1 replica of 2 ranks" in grpo
    assert "rewards     exact_match, 3 replicas of 1 rank" in grpo
    trainer, _, reference = grpo.partition("of the reference's fullest rank")
    assert "    reference" not in trainer
    terms = dict(re.findall(r"^    (\w[\w ]+?) +([\d.]+)", reference, re.M))
    assert set(terms) == {"parameters", "activations", "gathered weights", "total on the device"}
    parameters = re.search(r"parameters +([\d.]+)", trainer)
    assert parameters is not None
    assert float(terms["parameters"]) == pytest.approx(float(parameters[1]) / 2, abs=2e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["stages.grpo.reference.use=torch"],
            "reference: loss 'grpo' needs no reference logprobs (stage 'grpo')",
        ),
        (
            ["stages.grpo.loss.kl_coef=0.1", "reference.use=torch"],
            "reference: loss 'cross_entropy' needs no reference logprobs (stage 'sft')",
        ),
        (
            [
                "stages.grpo.loss.kl_coef=0.1",
                "stages.grpo.reference.use=torch",
                "stages.grpo.reference.procs=2",
            ],
            "reference.procs: trainer torch runs in one process, not 2",
        ),
        (
            ["stages.grpo.loss.kl_coef=0.1", "stages.grpo.reference.procs=2"],
            "no trainer is chosen; add stages.grpo.reference.use",
        ),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"]])
def test_a_reference_that_cannot_be_is_refused_before_a_start(
    run_forge: Any, command: list[str], overrides: list[str], message: str
) -> None:
    result = run_forge(*command, "quickstart", *overrides)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_a_model_that_is_not_there_yet(run_forge: Any) -> None:
    result = run_forge("plan", "model.path=/nowhere/model")
    assert result.exit_code == 0
    assert "not known: /nowhere/model/config.json is not there" in result.stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.procs=2", "trainer.procs: trainer torch runs in one process, not 2"),
        ("distributed.strategy=fsdp", "distributed.strategy=fsdp: trainer torch"),
        ("distributed.tensor_parallel_degree=2", "distributed.tensor_parallel_degree=2: trainer"),
        ("distributed.compile=true", "distributed.compile=true: trainer torch"),
        ("distributed.activation_checkpoint=full", "trainer.gradient_checkpointing=true"),
        ("distributed.enable_cpu_offload=true", "distributed.enable_cpu_offload=true: trainer"),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"]])
def test_what_trainer_torch_does_not_do_is_refused_before_a_start(
    run_forge: Any, command: list[str], override: str, message: str
) -> None:
    result = run_forge(*command, "quickstart", override)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
    assert "titan" in line


def test_planning_supervised_training_loads_no_transformers() -> None:
    program = (
        "import sys; from forge_core.cli import main; code = main(['plan', 'quickstart']); "
        "print(sorted({'transformers', 'vllm', 'torchtitan'} & set(sys.modules)), code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[] 0"


def test_rows_of_unknown_length_are_told_by_the_thousand(run_forge: Any, tmp_path: Path) -> None:
    """No micro-batch of 8 x 131,072 tokens, which fits nowhere, but what each 1,024 tokens take."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_31_8B))
    result = run_forge("plan", f"model.path={tmp_path}")
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        "for each 1,024 tokens of a forward pass; not known how many: give recipe.max_length"
        in (result.stdout)
    )
    terms = dict(re.findall(r"^    (\w[\w ]+?) +([\d.]+)", result.stdout, re.M))
    assert 5 < float(terms["activations"]) < 20
    states = sum(float(terms[name]) for name in ("parameters", "gradients", "optimizer"))
    assert float(terms["total on the device"]) == pytest.approx(states, abs=5e-3)
    assert re.search(r"total on the device +[\d.]+, without activations", result.stdout)


@pytest.mark.parametrize("trainer", [[], ["trainer.use=titan"]])
def test_a_trainer_that_splits_micro_batches_bounds_a_pass(
    run_forge: Any, tmp_path: Path, trainer: list[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_31_8B))
    limit = "trainer.max_tokens_per_micro_batch=4096"
    result = run_forge("plan", f"model.path={tmp_path}", *trainer, limit)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "(an estimate, 4,096 tokens at a time; a longer sequence goes alone)" in result.stdout
    assert "without activations" not in result.stdout


def test_small_terms_keep_their_digits(run_forge: Any, tmp_path: Path) -> None:
    tiny = {
        **LLAMA_31_8B,
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    result = run_forge("plan", f"model.path={tmp_path}", "recipe.max_length=100000")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"parameters +2\.\d{3} KiB", result.stdout)
    assert " 0.000" not in result.stdout


class Lookahead(Settings):
    """A recipe's settings with names of its own."""

    lookahead: int = 4
    longest: int = 48


@pytest.mark.parametrize("tells", [False, True])
def test_a_recipe_of_ones_own_is_not_guessed_at(run_forge: Any, tells: bool) -> None:
    class Mine:
        def plan(self, config: Any, dataset_length: int) -> int:
            return 1

        async def run(self, stage: Any) -> None:
            raise NotImplementedError

    def bounds(settings: Lookahead) -> TokenLimit:
        return TokenLimit(tokens=settings.longest, key="recipe.longest")

    def lag(settings: Lookahead) -> int:
        return settings.lookahead

    class Plugin:
        @hookimpl
        def forge_recipes(self) -> Any:
            yield RecipeComponent(
                name="mine",
                settings=Lookahead,
                build=lambda settings, context: Mine(),
                summary="one's own",
                requires={"dataset", "generator", "trainer", "rewards"},
                max_tokens=bounds if tells else None,
                max_staleness=lag if tells else None,
            )

    app = Forge(plugins=[Plugin()])
    result = run_forge("plan", "quickstart", "stages.grpo.recipe={use: mine}", app=app)
    assert (result.exit_code, result.stderr) == (0, "")
    grpo = result.stdout.partition("stage grpo")[2]
    if tells:
        assert "staleness   4 (optimizer steps at most)" in grpo
        assert "each of at most 48 tokens (recipe.longest)" in grpo
    else:
        assert "staleness   not known: recipe mine does not tell it" in grpo
    assert "on-policy" not in grpo
