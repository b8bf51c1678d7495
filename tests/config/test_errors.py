"""Every mistake is one line: where, the key as it was typed, what is allowed, a suggestion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import forge_local.plugin
from forge_core import ConfigError, Forge, PluginError, RunConfig
from forge_core.config.resolve import resolve
from forge_core.plugins.catalog import Catalog
from forge_testing.command import CommandResult

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]

TRAINING = (
    "(allowed: batch_size, gradient_accumulation_steps, learning_rate, max_grad_norm, "
    "num_epochs, optimizer, schedule, seed, steps, warmup_steps)"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "training:\n  batchsize: 4\n",
            "a.yaml:2: training.batchsize: unknown key; did you mean training.batch_size? "
            + TRAINING,
        ),
        (
            "training:\n  batch_size: four\n",
            "a.yaml:2: training.batch_size: must be a whole number, at least 1, or null; "
            "not 'four'",
        ),
        (
            "training: {batch_size: '4'}\n",
            "a.yaml:1: training.batch_size: must be a whole number, at least 1, or null; not '4'",
        ),
        (
            "training: {steps: 0}\n",
            "a.yaml:1: training.steps: must be a whole number, at least 1, or null; not '0'",
        ),
        (
            "training: {learning_rate: 1e-5x}\n",
            "a.yaml:1: training.learning_rate: must be a number, at least 0; not '1e-5x'",
        ),
        (
            "training: {learning_rate: null}\n",
            "a.yaml:1: training.learning_rate: must be a number, at least 0; not null",
        ),
        (
            "training: {optimizer: {betas: [0.9, high]}}\n",
            "a.yaml:1: training.optimizer.betas[1]: must be a number, at least 0, below 1; "
            "not high",
        ),
        (
            "training: {optimizer: {betas: [0.9]}}\n",
            "a.yaml:1: training.optimizer.betas[1]: missing; optimizer adamw needs it",
        ),
        (
            "training: {optimizer: {betas: 0.9}}\n",
            "a.yaml:1: training.optimizer.betas: must be a list [a number, at least 0, below 1, "
            "a number, at least 0, below 1]; not '0.9'",
        ),
        (
            "training: {steps: {a: 1}}\n",
            "a.yaml:1: training.steps: must be a whole number, at least 1, or null; not a mapping",
        ),
        (
            "distributed: {precision: bf61}\n",
            "a.yaml:1: distributed.precision: must be one of fp32, bf16; not 'bf61'; "
            "did you mean bf16?",
        ),
        ("training: 5\n", "a.yaml:1: training: must be a mapping; not '5'"),
        ("model: {path: 5}\n", "a.yaml:1: model.path: must be a path or null; not '5'"),
        (
            "model:\n  init: {seed: 1}\n",
            "a.yaml:2: model.init.characters: missing; it has no default "
            "(alphabet of a character tokenizer made with the model; one token each)",
        ),
        (
            "model: {init: {characters: ab, archtecture: x}}\n",
            "a.yaml:1: model.init.archtecture: unknown key; did you mean model.init.architecture? "
            "(allowed: architecture, characters, config, seed)",
        ),
        (
            "model: {path: x, init: {characters: ab}}\n",
            "a.yaml:1: model: give path or init, not both",
        ),
        (
            "trainer:\n  use: torch\n  fused: yes\n",
            "a.yaml:3: trainer.fused: must be true or false; not 'yes'",
        ),
        (
            "trainer: {lr: fast}\n",
            "a.yaml:1: trainer.lr: must be a number, at least 0; not 'fast'",
        ),
        (
            "trainer:\n  use: sharded\n  fused: true\n",
            "a.yaml:3: trainer.fused: unknown key of trainer sharded; did you mean trainer.use? "
            "(allowed: env, isolate, procs, shards, use, with_gpus)",
        ),
        (
            "generator: {replicas: 0}\n",
            "a.yaml:1: generator.replicas: must be a whole number, at least 1; not '0'",
        ),
        (
            "generator: {use: remote}\n",
            "a.yaml:1: generator.url: missing; generator remote needs it "
            "(where the server listens)",
        ),
        (
            "loss:\n  use: grop\n",
            "a.yaml:2: loss.use: no loss is called 'grop'; did you mean 'grpo'?; "
            "installed: cross_entropy, grpo, ppo; installed plugins were not looked for",
        ),
        ("loss: grpo\n", "a.yaml:1: loss: must be a mapping; not 'grpo'; write loss.use=grpo"),
        ("loss: {use: 5}\n", "a.yaml:1: loss.use: must be the name of a component; not '5'"),
        (
            "dataset: {path: x}\n",
            "a.yaml:1: dataset: no dataset is chosen; add dataset.use (installed: lines)",
        ),
        (
            "dataset: {use: lines, path: x, scale: [1]}\n",
            "a.yaml:1: dataset.scale: must be a whole number or text or null; not [1]",
        ),
        (
            "dataset: {use: lines, path: x, splits: [a, 2]}\n",
            "a.yaml:1: dataset.splits[1]: must be text; not 2",
        ),
        (
            "dataset: {use: lines, path: x, fields: {prompt: 3}}\n",
            "a.yaml:1: dataset.fields.prompt: must be text; not '3'",
        ),
        (
            "rewards:\n  math: {}\n  exact_match: {weigth: 2}\n",
            "a.yaml:3: rewards.exact_match.weigth: unknown key of reward exact_match; "
            "did you mean rewards.exact_match.weight? "
            "(allowed: concurrency, deadline, failure_reward, strip, use, weight)",
        ),
        (
            "rewards: {mine: {}}\n",
            "a.yaml:1: rewards.mine: no reward is called 'mine'; installed: exact_match, math; "
            "installed plugins were not looked for",
        ),
        (
            "rewards: [math]\n",
            "a.yaml:1: rewards: must be a mapping; not '[math]'",
        ),
        (
            "rewards: {math: 1}\n",
            "a.yaml:1: rewards.math: must be a mapping; not '1'; write rewards.math.use=1",
        ),
        ("recipe: null\n", "a.yaml:1: recipe: cannot be null"),
        ("runtime: null\n", "a.yaml:1: runtime: cannot be null"),
        (
            "name: ../up\n",
            "a.yaml:1: name: must be a name for the run's folder, without slashes",
        ),
        (
            "stages: {a.b: {}}\n",
            "a.yaml:1: stages.a.b: a stage's name is made of letters, digits, _ and -",
        ),
        ("stages: [a]\n", "a.yaml:1: stages: must be a mapping of stages, in their order"),
        ("stages: {a: 3}\n", "a.yaml:1: stages.a: must be a mapping of sections; not '3'"),
        (
            "stages:\n  a:\n    training: {step: 1}\n",
            "a.yaml:3: stages.a.training.step: unknown key; did you mean "
            "stages.a.training.steps? " + TRAINING,
        ),
        (
            "stages: {a: {checkpointing: {keep: 1}}}\n",
            "a.yaml:1: stages.a.checkpointing: belongs to the whole run; move it to the top level",
        ),
        (
            "stages: {a: {los: {use: ppo}}}\n",
            "a.yaml:1: stages.a.los: unknown section; did you mean stages.a.loss? (allowed: "
            "advantage, dataset, distributed, environment, eval_dataset, evaluation, generator, "
            "loss, recipe, reference, replay_buffer, reward_workers, rewards, sampling, trainer, "
            "training, transport)",
        ),
    ],
)
def test_a_mistake_in_a_file(read: Read, write: Write, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write("a.yaml", text))
    assert list(caught.value.problems) == [line]


def test_all_mistakes_at_once_each_with_its_own_place(read: Read, write: Write) -> None:
    path = write("a.yaml", "training:\n  stepz: 1\nlos: {}\nsampling: {top_p: 2}\n")
    with pytest.raises(ConfigError) as caught:
        read(path, "generator.max_batch=many", FORGE_EVALUATION__TASKS="-1")
    assert [problem.split(": ")[:2] for problem in caught.value.problems] == [
        ["a.yaml:3", "los"],
        ["generator.max_batch=many", "generator.max_batch"],
        ["a.yaml:2", "training.stepz"],
        ["a.yaml:4", "sampling.top_p"],
        ["FORGE_EVALUATION__TASKS", "evaluation.tasks"],
    ]


def test_a_mistake_in_the_base_is_told_once_for_all_stages(read: Read, write: Write) -> None:
    path = write("a.yaml", "training: {steps: x}\nstages: {a: {}, b: {}}\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert len(caught.value.problems) == 1


def test_a_default_that_is_not_installed_is_missed_only_where_it_was_meant(
    forge_app: Callable[..., object], write: Write
) -> None:
    catalog = forge_app(forge_local.plugin).plugins.catalog  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as caught:
        resolve(catalog, {"trainer": {"fused": True}, "loss": {"use": "torch"}}, environ={})
    assert [problem.partition("; ")[0] for problem in caught.value.problems] == [
        "recipe: no recipe is chosen",
        "mapping: trainer: no trainer is chosen",
        "mapping: loss.use: no loss is called 'torch'",
    ]


def test_data_that_yaml_cannot_hold(components: object) -> None:
    with pytest.raises(ConfigError, match=r"^mapping: dataset: holds what YAML cannot: "):
        resolve(
            components,  # type: ignore[arg-type]
            {"dataset": {"use": "lines", "path": "x", "fields": {"a": object()}}},
            environ={},
        )


@pytest.mark.parametrize(
    ("defaults", "error", "line"),
    [
        (
            {"recipe": {"use": "y"}, "model": {"name": "z"}},
            PluginError,
            "recipe grpo: defaults cannot set model, recipe",
        ),
        ({"stages": {"a": {}}}, PluginError, "recipe grpo: defaults cannot set stages"),
        ({"los": {}}, ConfigError, "recipe grpo: los: unknown section; did you mean loss?"),
    ],
)
def test_a_recipe_that_oversteps_is_the_plugins_fault(
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    defaults: dict[str, object],
    error: type[Exception],
    line: str,
) -> None:
    component = replace(catalog.get("recipe", "grpo"), defaults=defaults)
    monkeypatch.setattr(catalog, "get", lambda family, name: component)
    with pytest.raises(error) as caught:
        resolve(catalog, None, ["recipe.use=grpo"], environ={})
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("command", ["show", "explain"])
def test_the_command_prints_lines_and_exits_with_2(
    run_forge: Callable[..., CommandResult], app: object, write: Write, command: str
) -> None:
    write("a.yaml", "training:\n  batchsize: 4\nlos: {}\n")
    key = ["trainer.lr"] if command == "explain" else []
    result = run_forge("config", command, *key, "a.yaml", app=app)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["error", "a.yaml:3", "los"],
        ["error", "a.yaml:2", "training.batchsize"],
    ]


def test_a_function_in_a_config_gets_advice_that_works():
    with pytest.raises(ConfigError) as caught:
        Forge().resolve({"recipe": {"use": "sft"}, "rewards": {"mine": lambda sample: 1.0}})
    (line,) = [line for line in caught.value.problems if "rewards.mine" in line]
    assert "must be a mapping" in line
    assert "give the object itself as rewards.mine.use" in line
    assert "rewards.mine.use=<" not in line
