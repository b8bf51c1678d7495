"""What a resolved config holds, and that it loads again as it stands."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import forge_local.plugin
from forge_core import Forge, Placement, RecipeComponent, RunConfig, hookimpl
from forge_core.config.effective import stage_tree, to_yaml
from forge_core.config.resolve import resolve
from forge_core.plugins.catalog import Catalog

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]

GETTING_STARTED = Path(__file__).parent / "getting_started.yaml"


def test_the_config_of_getting_started_loads_as_it_stands(read: Read) -> None:
    config = read(GETTING_STARTED)
    [stage] = config.stages
    assert config.name == "getting_started"
    assert stage.recipe.name == "sft"
    assert config.model.name == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert config.model.path == Path("/tmp/Meta-Llama-3.1-8B-Instruct")
    assert stage.training.batch_size == 4
    assert stage.training.learning_rate == 1e-5
    assert stage.training.num_epochs == 10
    assert stage.training.gradient_accumulation_steps == 4
    assert stage.distributed.strategy == "fsdp"
    assert stage.distributed.precision == "bf16"
    assert config.checkpointing.save_interval == 1000
    assert config.checkpointing.output_dir == Path("/tmp/checkpoints")
    assert stage.dataset is None


def test_what_a_config_starts_with(read: Read) -> None:
    config = read(None)
    [stage] = config.stages
    chosen = {
        section: selection.name
        for section in ("recipe", "trainer", "generator", "transport", "environment", "loss")
        if (selection := getattr(stage, section)) is not None
    }
    assert chosen == {
        "recipe": "sft",
        "trainer": "torch",
        "generator": "torch",
        "transport": "memory",
        "environment": "single_turn",
        "loss": "cross_entropy",
    }
    assert config.runtime.name == "local"
    assert list(config.trackers) == ["console", "jsonl"]
    assert (stage.dataset, stage.eval_dataset, dict(stage.rewards)) == (None, None, {})
    assert stage.generator_placement == stage.trainer_placement == Placement()
    assert config.checkpointing.output_dir == Path("runs")


def test_placement_belongs_to_the_kernel(read: Read) -> None:
    stage = read(None, "generator.replicas=3", "trainer.procs=2", "generator.max_batch=4").stages[0]
    assert stage.generator_placement == Placement(replicas=3, procs=1)
    assert stage.trainer_placement == Placement(replicas=1, procs=2)
    assert stage.generator is not None
    assert stage.generator.settings.model_dump() == {"max_batch": 4}


def test_a_reference_and_reward_workers_have_places_where_they_are_asked_for(read: Read) -> None:
    stage = read(None).stages[0]
    assert stage.reference is None
    assert stage.reference_placement == stage.reward_placement == Placement()
    assert "reference" not in read(None).tree
    config = read(
        None,
        *("reference.use=sharded", "reference.procs=2", "reference.replicas=3"),
        *("reward_workers.replicas=4", "reward_workers.isolate=true"),
    )
    stage = config.stages[0]
    assert stage.reference is not None
    assert (stage.reference.family, stage.reference.name) == ("trainer", "sharded")
    assert stage.reference_placement == Placement(replicas=3, procs=2)
    assert stage.reward_placement == Placement(replicas=4, isolate=True)
    assert read(dict(config.tree)).stages == config.stages
    assert read(None, "reference.use=sharded", "reference=null").stages[0].reference is None


def test_defaults_that_are_not_installed_are_none(forge_app: Callable[..., Forge]) -> None:
    class OnlyARecipe:
        @hookimpl
        def forge_recipes(self) -> Any:
            from forge_core import Settings

            yield RecipeComponent(
                name="sft", settings=Settings, build=dump_nothing, summary="nothing", default=True
            )

    catalog = forge_app(forge_local.plugin, OnlyARecipe()).plugins.catalog
    config = resolve(catalog, None, environ={})
    [stage] = config.stages
    assert (stage.trainer, stage.generator, stage.transport) == (None, None, None)
    assert (stage.environment, stage.loss) == (None, None)
    assert "trainer" not in config.tree
    assert resolve(catalog, dict(config.tree), environ={}) == config


def dump_nothing(settings: Any, context: Any) -> None:
    """Module-level, as the kernel asks of what a component is built with."""


def test_the_resolved_config_loads_to_the_same(read: Read, write: Write) -> None:
    for arguments in (
        [],
        ["training.steps=5"],
        ["~environment", "trackers.console=null", "loss=null"],
        ["stages.sft.environment=null", "stages.sft.rewards.exact_match=null"],
        ["stages.grpo.generator={use: remote, url: 'http://x'}"],
        ["rewards.second={use: exact_match, weight: -1}", "model.name=acme/big"],
        ["model.name=acme/big", "model.dtype=float32", "~sampling.max_tokens"],
        ["model.name='${x} $${y}'", "training.max_grad_norm=null"],
    ):
        config = read("two-stages", *arguments, x="left ${alone}")
        path = write("again.yaml", to_yaml(config.tree))
        again = read(path)
        assert again == config, arguments
        assert to_yaml(again.tree) == to_yaml(config.tree)


def test_a_stage_alone_loads_to_that_stage(read: Read, write: Write) -> None:
    config = read("two-stages", "stages.grpo.loss.use=ppo", "rewards.math={}")
    for stage in config.stages:
        path = write("alone.yaml", to_yaml(stage_tree(config.tree, stage.name)))
        [alone] = read(path).stages
        assert alone == stage


def test_what_stages_share_is_shown_once(read: Read) -> None:
    tree = read("two-stages").tree
    assert tree["training"]["seed"] == 0
    assert "seed" not in tree["stages"]["sft"]["training"]
    assert tree["stages"]["sft"]["training"] == {
        "batch_size": 8,
        "learning_rate": 1e-3,
        "steps": 300,
    }
    assert tree["trainer"] == {
        "use": "torch",
        "procs": 1,
        "isolate": False,
        "with_gpus": False,
        "env": {},
        "fused": False,
    }
    assert tree["rewards"]["exact_match"]["weight"] == 1.0
    assert next(iter(tree)) == "name"
    assert list(tree)[-1] == "stages"


def test_a_config_can_travel(read: Read) -> None:
    config = read("two-stages")
    assert pickle.loads(pickle.dumps(config)) == config


def test_no_field_is_forgotten_in_provenance(read: Read) -> None:
    config = read("two-stages")
    keys = {key for key, _ in flatten(config.tree) if not key.startswith("stages.")}
    shared = keys - set(config.provenance)
    assert {f"stages.sft.{key}" for key in shared} <= set(config.provenance)
    for key, value in flatten(config.tree):
        if key in config.provenance:
            assert config.provenance[key].value == value


def flatten(data: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(data, dict) or not data:
        return [(prefix, data)]
    return [
        pair
        for key, value in data.items()
        for pair in flatten(value, f"{prefix}.{key}" if prefix else key)
    ]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
OPTIONAL = st.none()
TRAINING = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 9),
        "learning_rate": st.floats(0, 1),
        "optimizer": st.one_of(
            st.sampled_from(["adamw", "plain", {"use": "plain"}]),
            st.fixed_dictionaries(
                {"use": st.just("adamw")}, optional={"weight_decay": st.floats(0, 1)}
            ),
        ),
        "max_grad_norm": OPTIONAL | st.floats(0.1, 2),
        "schedule": st.sampled_from(["constant", "cosine", {"use": "cosine"}, None]),
    },
)
LOSS = st.sampled_from(
    [
        None,
        {"use": "grpo"},
        {"use": "grpo", "clip": 0.5},
        {"use": "ppo", "clip_range": 0.5},
        {"use": "cross_entropy"},
    ]
)
PART = st.fixed_dictionaries(
    {"use": st.sampled_from(["math", "exact_match"])}, optional={"weight": st.floats(-2, 2)}
)
STAGE = st.fixed_dictionaries(
    {},
    optional={
        "recipe": st.sampled_from([{"use": "sft"}, {"use": "grpo"}]),
        "training": TRAINING,
        "loss": LOSS,
        "environment": OPTIONAL | st.just({"use": "single_turn"}),
        "rewards": st.dictionaries(st.sampled_from("ab"), PART),
        "dataset": OPTIONAL
        | st.fixed_dictionaries(
            {"use": st.just("lines"), "path": st.just("x")},
            optional={"fields": st.dictionaries(TEXT, TEXT, max_size=2), "splits": st.lists(TEXT)},
        ),
    },
)
CONFIG = st.builds(
    lambda base, run, stages: {**base, **run, **({"stages": stages} if stages else {})},
    STAGE,
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.fixed_dictionaries({"name": TEXT}),
            "trackers": st.dictionaries(st.sampled_from(["console", "jsonl"]), OPTIONAL),
        },
    ),
    st.dictionaries(st.sampled_from(["one", "two", "three"]), STAGE, max_size=3),
)


@given(CONFIG)
def test_whatever_resolves_loads_again_to_the_same(components: Catalog, data: Any) -> None:
    config = resolve(components, data, environ={})
    again = resolve(components, dict(config.tree), environ={})
    assert again == config
    assert again.tree == config.tree
