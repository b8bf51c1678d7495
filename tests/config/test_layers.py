"""Which layer wins, what is dropped with what, and how keys are typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_core import ConfigError, RunConfig
from forge_core.config.effective import to_yaml
from forge_core.config.resolve import resolve
from forge_core.plugins.catalog import Catalog

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]


def problems(read: Read, *arguments: object, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*arguments, **environ)
    return list(caught.value.problems)


# --- order ----------------------------------------------------------------------------------------


def test_layers_lie_over_each_other_in_order(read: Read, write: Write) -> None:
    write("base.yaml", "training: {seed: 1, warmup_steps: 1, learning_rate: 1}\n")
    path = write(
        "a.yaml", "extends: base.yaml\ntraining: {seed: 2, warmup_steps: 2, batch_size: 2}\n"
    )
    config = read(
        path, "training.seed=4", FORGE_TRAINING__SEED="3", FORGE_TRAINING__WARMUP_STEPS="3"
    )
    training = config.stages[0].training
    assert training.seed == 4
    assert training.warmup_steps == 3
    assert training.batch_size == 2
    assert training.learning_rate == 1.0
    schedule = config.stages[0].schedule
    assert schedule is not None
    assert schedule.name == "constant"


def test_the_recipe_says_what_other_sections_default_to(read: Read) -> None:
    config = read(None, "recipe.use=grpo")
    [stage] = config.stages
    assert stage.loss is not None
    assert stage.loss.name == "grpo"
    assert stage.training.batch_size == 64
    assert config.provenance["training.batch_size"].layer == "recipe grpo"
    assert read(None, "recipe.use=grpo", "loss.use=ppo").stages[0].loss.name == "ppo"


def test_the_model_preset_lies_below_the_file_and_above_the_recipe(
    read: Read, write: Write
) -> None:
    path = write("a.yaml", "model: {name: acme/big}\n")
    config = read(path)
    assert config.model.dtype == "bfloat16"
    assert config.stages[0].sampling.max_tokens == 99
    assert config.provenance["model.dtype"].layer == "model preset acme/big"
    assert read(path, "model.dtype=float32").model.dtype == "float32"
    assert read(path, "model.name=other").model.dtype == "float32"
    path = write("b.yaml", "model: {name: acme/big}\nsampling: {max_tokens: 5}\n")
    assert read(path).stages[0].sampling.max_tokens == 5


def test_every_value_knows_what_it_overrode(read: Read, write: Write) -> None:
    path = write("a.yaml", "trainer:\n  lr: 1e-3\n")
    config = read(path, "trainer.lr=1e-4", "trainer.lr=1e-5", FORGE_TRAINER__LR="1e-2")
    found = config.provenance["training.learning_rate"]
    assert (found.value, found.layer, found.where) == (1e-5, "command line", "trainer.lr=1e-5")
    assert [(past.value, past.where) for past in found.overrode] == [
        (1e-4, "trainer.lr=1e-4"),
        (1e-2, "FORGE_TRAINER__LR"),
        (1e-3, "a.yaml:2"),
    ]
    assert found.key == "trainer.lr"


SOURCES = ("extends", "file", "environment", "argument")


@given(layers=st.lists(st.sampled_from(SOURCES), min_size=1, unique=True), staged=st.booleans())
def test_the_highest_layer_wins(
    layers: list[str], staged: bool, components: Catalog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also over a stage's override in any lower layer."""
    folder = tmp_path_factory.mktemp("layers")
    text = dict.fromkeys(SOURCES[:2], "")
    for number, layer in enumerate(SOURCES[:2], start=1):
        if layer in layers:
            text[layer] = f"training: {{seed: {number}0}}\n"
            if staged:
                text[layer] += f"stages: {{s: {{training: {{seed: {number}}}}}}}\n"
    (folder / "below.yaml").write_text(text["extends"])
    (folder / "a.yaml").write_text("extends: below.yaml\n" + text["file"])
    # Only the files below may have said that there are stages.
    has_stage = staged and bool({"extends", "file"} & set(layers))
    environ = {"FORGE_TRAINING__SEED": "3"} if "environment" in layers else {}
    arguments = ["training.seed=4"] if "argument" in layers else []
    config = resolve(components, folder / "a.yaml", arguments, environ=environ)
    highest = max(SOURCES.index(layer) + 1 for layer in layers)
    expected = highest if highest > 2 or staged else highest * 10
    assert [stage.training.seed for stage in config.stages] == [expected]
    key = "stages.s.training.seed" if has_stage else "training.seed"
    past = [config.provenance[key].value, *(p.value for p in config.provenance[key].overrode)]
    assert past == sorted(past, key=lambda seed: -(seed if seed < 10 else seed / 10 - 0.5))


# --- stages ---------------------------------------------------------------------------------------


def test_stages_are_overrides_of_the_top_level(read: Read) -> None:
    config = read("two-stages")
    sft, grpo = config.stages
    assert (sft.name, grpo.name) == ("sft", "grpo")
    assert (sft.training.steps, grpo.training.steps) == (300, 200)
    assert (sft.training.learning_rate, grpo.training.learning_rate) == (1e-3, 5e-4)
    assert (sft.training.batch_size, grpo.training.batch_size) == (8, 64)
    assert sft.loss is not None
    assert grpo.loss is not None
    assert (sft.loss.name, grpo.loss.name) == ("cross_entropy", "grpo")
    assert set(sft.rewards) == set(grpo.rewards) == {"exact_match"}
    assert sft.model is grpo.model is config.model


def test_without_stages_the_top_level_is_the_one_stage(read: Read) -> None:
    assert [stage.name for stage in read(None, "recipe.use=grpo").stages] == ["grpo"]


def test_a_higher_base_wins_over_a_lower_stage(read: Read) -> None:
    config = read("two-stages", "training.steps=5")
    assert [stage.training.steps for stage in config.stages] == [5, 5]


def test_a_stage_wins_over_its_own_layers_base(read: Read) -> None:
    config = read("two-stages", "training.steps=5", "stages.grpo.training.steps=7")
    assert [stage.training.steps for stage in config.stages] == [5, 7]


def test_a_stage_can_be_removed_and_added(read: Read) -> None:
    assert [s.name for s in read("two-stages", "stages.sft=null").stages] == ["grpo"]
    assert [s.name for s in read("two-stages", "~stages.grpo").stages] == ["sft"]
    config = read("two-stages", "stages.more={recipe: {use: grpo}, training: {steps: 1}}")
    assert [stage.name for stage in config.stages] == ["sft", "grpo", "more"]
    assert config.stages[2].training.steps == 1


def test_a_removed_stage_comes_back_fresh(read: Read, write: Write) -> None:
    write("a.yaml", "stages: {s: {training: {seed: 5, steps: 5}}, t: {}}\n")
    write("b.yaml", "extends: a.yaml\nstages: {s: null}\n")
    assert [stage.name for stage in read(Path("b.yaml")).stages] == ["t"]
    path = write("c.yaml", "extends: b.yaml\nstages: {s: {training: {steps: 1}}}\n")
    stage = next(stage for stage in read(path).stages if stage.name == "s")
    assert (stage.training.seed, stage.training.steps) == (0, 1)


def test_null_for_a_stage_that_is_not_there(read: Read, write: Write) -> None:
    path = write("a.yaml", "stages:\n  sft:\n  grpo: {}\n")
    assert problems(read, path) == [
        "a.yaml:2: stages.sft: no lower layer has this stage; "
        "null removes a stage, {} is one without overrides"
    ]


# --- what goes with what --------------------------------------------------------------------------


def test_another_component_drops_the_keys_of_the_one_below(read: Read, write: Write) -> None:
    path = write("a.yaml", "loss: {use: grpo, clip: 0.1}\ntrainer: {fused: true, procs: 4}\n")
    stage = read(path, "loss.use=ppo", "trainer.use=sharded").stages[0]
    assert stage.loss is not None
    assert stage.trainer is not None
    assert stage.loss.settings.model_dump() == {"clip_range": 0.1}
    assert stage.trainer.settings.model_dump() == {"shards": 2}
    assert stage.trainer_placement.procs == 4


def test_naming_the_same_component_again_keeps_its_keys(read: Read, write: Write) -> None:
    path = write("a.yaml", "loss: {use: grpo, clip: 0.1}\n")
    stage = read(path, "loss.use=grpo").stages[0]
    assert stage.loss is not None
    assert stage.loss.settings.model_dump()["clip"] == 0.1


def test_another_component_in_a_stage_drops_the_bases_keys(read: Read, write: Write) -> None:
    path = write("a.yaml", "loss: {use: grpo, clip: 0.1}\nstages: {a: {}, b: {loss: {use: ppo}}}\n")
    first, second = read(path).stages
    assert first.loss is not None
    assert second.loss is not None
    assert (first.loss.name, second.loss.name) == ("grpo", "ppo")


def test_the_same_for_parts(read: Read, write: Write) -> None:
    path = write(
        "a.yaml",
        "rewards:\n"
        "  exact_match: {strip: false, weight: 2, deadline: 1}\n"
        "  other: {use: exact_match, strip: false}\n",
    )
    stage = read(path, "rewards.exact_match.use=math", "rewards.other.use=exact_match").stages[0]
    part = stage.rewards["exact_match"]
    assert (part.selection.name, part.weight, part.deadline) == ("math", 2.0, 1.0)
    assert part.failure_reward is None
    assert stage.rewards["other"].selection.settings.model_dump() == {"strip": False}


def test_steps_take_the_place_of_epochs_below(read: Read, write: Write) -> None:
    path = write("a.yaml", "training: {num_epochs: 3}\n")
    config = read(path, "training.steps=5")
    training = config.stages[0].training
    assert (training.steps, training.num_epochs) == (5, None)
    assert config.provenance["training.num_epochs"].overrode[0].where == "a.yaml:1"
    assert read(path, "training.steps=null").stages[0].training.num_epochs == 3
    path = write("b.yaml", "training: {num_epochs: 3, steps: 4}\n")
    assert problems(read, path) == ["b.yaml:1: training: give steps or num_epochs, not both"]


def test_lists_and_scalars_replace_and_mappings_merge(read: Read, write: Write) -> None:
    path = write(
        "a.yaml", "dataset: {use: lines, path: x, splits: [a, b], fields: {p: 1st, q: 2nd}}\n"
    )
    config = read(path, "dataset.splits=[c]", "dataset.fields.q=third")
    dataset = config.stages[0].dataset
    assert dataset is not None
    assert dataset.settings.model_dump()["splits"] == ["c"]
    assert dataset.settings.model_dump()["fields"] == {"p": "1st", "q": "third"}


# --- null and ~ -----------------------------------------------------------------------------------


def test_null_unsets(read: Read, write: Write) -> None:
    path = write("a.yaml", "training: {max_grad_norm: 2, steps: 4}\nloss: {use: grpo}\n")
    config = read(
        path, "training.max_grad_norm=null", "loss=null", "trackers.console=null", "training.steps="
    )
    assert config.stages[0].training.max_grad_norm is None
    assert config.stages[0].training.steps is None
    assert config.stages[0].loss is None
    assert set(config.trackers) == {"jsonl"}
    assert read(path, "trackers=null").trackers == {}
    assert set(read(path, "trackers=null", "trackers.jsonl={}").trackers) == {"jsonl"}
    assert read(path, "training=null").stages[0].training.steps is None


def test_tilde_goes_back_to_the_default(read: Read, write: Write) -> None:
    path = write("a.yaml", "training: {max_grad_norm: 2, steps: 4}\nrewards: {math: {}}\n")
    config = read(path, "~training.max_grad_norm", "~training.steps", "~rewards.math")
    assert config.stages[0].training.max_grad_norm == 1.0
    assert config.stages[0].training.steps is None
    assert config.stages[0].rewards == {}
    past = config.provenance["training.steps"]
    assert (past.layer, past.overrode[0].where) == ("default", "~training.steps")
    assert past.overrode[1].where == "a.yaml:1"
    stage = read(path, "~trainer", "trainer.use=sharded").stages[0]
    assert stage.trainer is not None


def test_removing_what_is_not_there(read: Read) -> None:
    assert problems(read, None, "~training.stepz", "trackers.tensorbord=null") == [
        "trackers.tensorbord=null: trackers.tensorbord: no lower layer has this part "
        "(allowed: console, jsonl); null removes a part, {} is one with default settings",
        "~training.stepz: nothing to remove: no lower layer sets training.stepz",
    ]


def test_removing_from_one_stage_only(read: Read) -> None:
    config = read("two-stages", "~stages.sft.training.learning_rate")
    assert [stage.training.learning_rate for stage in config.stages] == [1e-5, 5e-4]
    config = read("two-stages", "~training.steps")
    assert [stage.training.steps for stage in config.stages] == [None, None]


# --- arguments ------------------------------------------------------------------------------------


def test_a_value_may_hold_equals_signs(read: Read) -> None:
    assert read(None, "model.name=a=b==c").model.name == "a=b==c"


@pytest.mark.parametrize("argument", ["training.steps", "=5", ".steps=5", "a..b=5", "~", "~a=5"])
def test_what_is_not_an_override(read: Read, argument: str) -> None:
    assert problems(read, None, argument) == [
        f"{argument}: not an override; write key=value, or ~key to remove one"
    ]


def test_extends_is_for_files(read: Read, catalog: Catalog) -> None:
    assert problems(read, None, "extends=quickstart") == [
        "extends=quickstart: extends belongs in a file, not on the command line"
    ]
    with pytest.raises(ConfigError, match="extends belongs in the source"):
        resolve(catalog, None, {"extends": "x"}, environ={})


def test_overrides_as_a_mapping(catalog: Catalog) -> None:
    config = resolve(
        catalog,
        {"training": {"steps": 3}, "trainer": {"lr": 1.0}},
        {"loss": {"use": "ppo"}, "training.steps": 4},
        environ={},
    )
    stage = config.stages[0]
    assert stage.loss is not None
    assert (stage.loss.name, stage.training.steps, stage.training.learning_rate) == ("ppo", 4, 1.0)
    assert config.provenance["training.steps"].where == "override training.steps"
    with pytest.raises(ConfigError, match=r"^override loss: loss.use: no loss is called 'x'"):
        resolve(catalog, None, {"loss": {"use": "x"}}, environ={})


def test_the_alias_is_another_way_to_type_a_key(read: Read, write: Write) -> None:
    path = write("a.yaml", "stages: {s: {trainer: {lr: 3.0}}}\n")
    assert read(path).stages[0].training.learning_rate == 3.0
    path = write("b.yaml", "training:\n  learning_rate: 1\ntrainer:\n  lr: 2\n")
    assert problems(read, path) == [
        "b.yaml:4: trainer.lr: another name of training.learning_rate, which is given too "
        "(b.yaml:2)"
    ]


# --- environment ----------------------------------------------------------------------------------


def test_environment(read: Read) -> None:
    config = read(
        "two-stages",
        FORGE_TRAINER__LR="1e-2",
        FORGE_STAGES__GRPO__TRAINING__STEPS="9",
        FORGE_EVAL_DATASET__USE="lines",
        FORGE_EVAL_DATASET__PATH="x",
        FORGE_SAMPLING="{top_k: 3}",
    )
    assert [stage.training.steps for stage in config.stages] == [300, 9]
    assert [stage.training.learning_rate for stage in config.stages] == [1e-2, 1e-2]
    assert config.stages[0].sampling.top_k == 3
    assert config.stages[0].eval_dataset is not None


def test_variables_that_are_not_config(read: Read) -> None:
    assert read(
        None,
        FORGE_DEBUG="1",
        FORGE_DISABLE_PLUGINS="x",
        FORGE_PLUGIN_AUTOLOAD="0",
        FORGE_HOME="/opt/another-program",
        OTHER__THING="1",
    ) == read(None)


def test_variables_that_are_mistakes(read: Read) -> None:
    assert problems(
        read,
        None,
        FORGE_X__Y="1",
        FORGE_TRAINING__BATCHSIZE="1",
        FORGE_TRAINING__="1",
        FORGE_DISABLE_PLUGIN="x",
        FORGE_TRAINING__STEPS="[",
    ) == [
        "FORGE_DISABLE_PLUGIN: unknown variable; did you mean FORGE_DISABLE_PLUGINS?",
        "FORGE_TRAINING__: training.: not a key; write FORGE_SECTION__KEY",
        "FORGE_TRAINING__STEPS: training.steps: not valid YAML: while parsing a flow node, "
        "expected the node content, but found '<stream end>'; put text that is not YAML in quotes",
        "FORGE_X__Y: x: unknown section (allowed: advantage, checkpointing, dataset, distributed, "
        "environment, eval_dataset, evaluation, extends, generator, loss, model, models, name, "
        "recipe, reference, replay_buffer, reward_workers, rewards, runtime, sampling, stages, "
        "trackers, trainer, training, transport)",
        "FORGE_TRAINING__BATCHSIZE: training.batchsize: unknown key; did you mean "
        "training.batch_size? (allowed: batch_size, gradient_accumulation_steps, "
        "learning_rate, max_grad_norm, num_epochs, optimizer, schedule, seed, steps, "
        "warmup_steps)",
    ]


# --- extends and sources --------------------------------------------------------------------------


def test_extends_a_file_beside_it_or_a_preset(read: Read, write: Write) -> None:
    write("deep/base.yaml", "training: {seed: 1}\n")
    write("deep/middle.yaml", "extends: base.yaml\ntraining: {warmup_steps: 2}\n")
    path = write("a.yaml", "extends: deep/middle.yaml\n")
    training = read(path).stages[0].training
    assert (training.seed, training.warmup_steps) == (1, 2)
    path = write("b.yaml", "extends: two-stages\nstages: {sft: {training: {steps: 1}}}\n")
    config = read(path)
    assert config.name == "b"
    assert [stage.training.steps for stage in config.stages] == [1, 200]
    assert config.provenance["stages.grpo.training.steps"].layer == "preset two-stages"


def test_extends_means_the_folder_of_the_file(read: Read, write: Write) -> None:
    write("base.yaml", "training: {seed: 1}\n")
    path = write("deep/a.yaml", "extends: base.yaml\n")
    assert problems(read, path) == [
        "deep/a.yaml:1: extends: deep/base.yaml: no such file",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("extends: a.yaml\n", "a.yaml: extends itself: a.yaml -> a.yaml"),
        ("extends: none.yaml\n", "a.yaml:1: extends: none.yaml: no such file"),
        ("extends: [b]\n", "a.yaml:1: extends: must be a file or a preset's name"),
        (
            "extends: two-stage\n",
            "a.yaml:1: extends: no such file beside it, and no preset is called 'two-stage'; "
            "did you mean 'two-stages'?; installed: two-stages; "
            "installed plugins were not looked for",
        ),
    ],
)
def test_extends_that_leads_nowhere(read: Read, write: Write, text: str, line: str) -> None:
    assert problems(read, write("a.yaml", text)) == [line]


def test_a_circle_of_files(read: Read, write: Write) -> None:
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: c.yaml\n")
    path = write("c.yaml", "extends: a.yaml\n")
    assert problems(read, path) == ["c.yaml: extends itself: c.yaml -> a.yaml -> b.yaml -> c.yaml"]


def test_what_a_source_may_be(read: Read, write: Write) -> None:
    assert read("two-stages").name == "two-stages"
    assert read({"training": {"seed": 3}}).name == "run"
    assert read({"name": "mine"}).name == "mine"
    assert read(write("some.yaml", "")).name == "some"
    write("runs/one/config.yaml", to_yaml(read("two-stages").tree))
    assert read("runs/one") == read("two-stages")
    write("empty/x", "")
    assert problems(read, "empty") == ["empty: a folder without config.yaml, so not a run folder"]
    assert problems(read, "none.yaml") == ["none.yaml: no such file"]
    assert problems(read, "some/none") == ["some/none: no such file"]
    assert problems(read, "two-stagse")[0].startswith(
        "two-stagse: no such file, and no preset is called 'two-stagse'; did you mean 'two-stages'?"
    )
