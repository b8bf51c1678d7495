from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge_config.explain import differences, explain
from forge_core import ConfigError, RunConfig

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]


def test_a_value(read: Read, write: Write) -> None:
    path = write("a.yaml", "training: {learning_rate: 1e-3}\n")
    [found] = explain(read(path, "trainer.lr=1e-4"), "trainer.lr")
    assert found.key == "training.learning_rate"
    assert found.provenance.value == 1e-4
    assert found.description == "peak learning rate"
    assert found.allowed == "a number, at least 0"
    assert found.default == "1.0e-05"


def test_a_section(read: Read) -> None:
    found = explain(read(None, "recipe.use=grpo", "loss.clip=0.3"), "loss")
    assert [item.key for item in found] == ["loss.use", "loss.clip", "loss.aggregate"]
    use, clip, aggregate = found
    assert (use.provenance.layer, use.description) == ("recipe grpo", "the grpo one")
    assert (clip.allowed, clip.default) == ("a number, above 0", "0.2")
    assert (aggregate.allowed, aggregate.provenance.layer) == (
        "one of tokens, sequences",
        "default",
    )


def test_the_kernels_keys_in_a_components_section(read: Read) -> None:
    config = read("two-stages")
    [replicas] = explain(config, "generator.replicas")
    assert replicas.description == "copies of the component behind one handle"
    assert [item.key for item in explain(config, "rewards.exact_match")] == [
        "rewards.exact_match.weight",
        "rewards.exact_match.deadline",
        "rewards.exact_match.concurrency",
        "rewards.exact_match.failure_reward",
        "rewards.exact_match.strip",
    ]


def test_the_keys_of_a_reference_and_of_reward_workers(read: Read) -> None:
    config = read(None, "reference.use=sharded", "reward_workers.replicas=2")
    explained = {item.key: item for item in explain(config, "reference")}
    assert set(explained) == {
        f"reference.{key}"
        for key in ("use", "procs", "isolate", "with_gpus", "env", "replicas", "model", "shards")
    }
    assert explained["reference.use"].allowed == "the name of a trainer, or FILE.py:NAME"
    assert explained["reference.replicas"].allowed == "a whole number, at least 1"
    [workers] = explain(config, "reward_workers.replicas")
    assert (workers.provenance.value, workers.default) == (2, "1")
    assert workers.description == "workers; they share the samples of a step"


def test_each_stage_where_they_differ_and_once_where_not(read: Read) -> None:
    config = read("two-stages")
    assert [item.key for item in explain(config, "training.steps")] == [
        "stages.sft.training.steps",
        "stages.grpo.training.steps",
    ]
    assert [item.key for item in explain(config, "training.schedule")] == ["training.schedule.use"]
    [one] = explain(config, "stages.grpo.trainer.lr")
    assert one.provenance.value == 5e-4
    assert [past.value for past in one.provenance.overrode] == [1e-3]
    config = read("two-stages", "training.schedule=cosine")
    assert [item.key for item in explain(config, "training.schedule")] == ["training.schedule.use"]


def test_a_key_that_is_not_there(read: Read) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(read("two-stages"), "training.stepz")
    assert str(caught.value) == (
        "training.stepz: no such key in this config; did you mean training.steps?"
    )


def test_differences(read: Read, write: Write) -> None:
    write("base.yaml", "training: {seed: 1}\nloss: {use: grpo}\n")
    left = read(Path("base.yaml"))
    right = read(write("b.yaml", "extends: base.yaml\nname: base\nloss: {use: ppo}\n"))
    found = {item.key: (item.left, item.right) for item in differences(left, right)}
    assert list(found) == ["loss.use", "loss.clip", "loss.aggregate", "loss.clip_range"]
    before, after = found["loss.use"]
    assert before is not None
    assert after is not None
    assert (before.value, before.where) == ("grpo", "base.yaml:2")
    assert (after.value, after.where) == ("ppo", "b.yaml:3")
    assert found["loss.clip"][1] is None
    assert differences(left, left) == []
