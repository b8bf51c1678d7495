"""What recipe ``grpo`` checks before anything starts, and how it splits a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_core import (
    ConfigError,
    Forge,
    TrainSequence,
    UsageError,
)
from forge_grpo import plugin
from forge_grpo.recipe import _split
from forge_local import plugin as local
from forge_testing.context import bare_context

CONFIG: dict[str, Any] = {
    "recipe": {"use": "grpo", "group_size": 8},
    "dataset": {"use": "arithmetic"},
    "rewards": {"exact_match": {}},
    "environment": {"use": "single_turn"},
    "training": {"batch_size": 32, "steps": 5},
}


@pytest.fixture
def plan(forge_app: Callable[..., Forge]) -> Callable[..., int]:
    """``plan({"training.steps": 5}, length=100)``: the steps that the recipe plans."""

    def plan(overrides: dict[str, Any] | list[str], length: int = 100) -> int:
        (stage,) = forge_app(plugin, local).resolve(CONFIG, overrides).stages
        return stage.recipe.build(bare_context()).plan(stage, length)

    return plan


def test_steps_are_taken_as_given(plan: Callable[..., int]) -> None:
    assert plan({}) == 5


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        # Four groups of eight a step: 100 tasks are 25 steps.
        ({"training.num_epochs": 1}, 25),
        ({"training.num_epochs": 2.5}, 63),
        ({"training.num_epochs": 1, "training.gradient_accumulation_steps": 2}, 13),
        ({"training.num_epochs": 1, "recipe.group_size": 32}, 100),
        ({"training.num_epochs": 0.001}, 1),
    ],
)
def test_epochs_count_tasks(
    plan: Callable[..., int], overrides: dict[str, Any], steps: int
) -> None:
    assert plan(overrides) == steps


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"recipe.group_size": 5}, r"recipe\.group_size: 5 does not divide the 32 episodes"),
        (
            {"recipe.group_size": 48, "training.gradient_accumulation_steps": 2},
            r"recipe\.group_size: 48 does not divide the 64 episodes",
        ),
        ({"sampling.temperature": 0}, r"sampling\.temperature: 0 samples no variety"),
        ({"sampling.top_p": 0.9}, r"sampling\.top_p, sampling\.top_k"),
        ({"sampling.top_k": 20}, r"sampling\.top_p, sampling\.top_k"),
        (["~training.steps"], r"training\.steps: give steps or num_epochs"),
        (
            {"recipe.max_staleness": 1, "loss.use": "reinforce"},
            r"recipe\.max_staleness: loss 'reinforce' does not correct for tokens",
        ),
        ({"replay_buffer.isolate": True}, r"replay_buffer: nothing waits in it"),
    ],
)
def test_what_cannot_work_is_refused(
    plan: Callable[..., int], overrides: dict[str, Any] | list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"recipe.group_size": 1},  # one episode has nothing to be compared with
        {"recipe.advantage_scale": "mean"},
        {"recipe.zero_variance": "resample"},
        {"recipe.max_staleness": -1},
        {"loss.clip_low": 1.5},
        {"loss.kl_coef": -1},
        {"loss.aggregate": "words"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(
    plan: Callable[..., int], overrides: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        plan(overrides)


@pytest.mark.parametrize("name", ["grpo", "gspo", "reinforce"])
def test_the_recipe_gives_its_losses_what_they_need(
    forge_app: Callable[..., Forge], name: str
) -> None:
    overrides: dict[str, Any] = {"loss.use": name}
    if name == "grpo":
        overrides |= {"loss.kl_coef": 0.1, "loss.entropy_coef": 0.1}
    (stage,) = forge_app(plugin, local).resolve(CONFIG, overrides).stages
    assert stage.loss is not None
    assert stage.loss.needs <= stage.recipe.provides | {"entropy"}


@pytest.mark.parametrize("loss", ["grpo", "gspo"])
def test_losses_that_know_the_sampler_may_train_on_older_tokens(
    plan: Callable[..., int], loss: str
) -> None:
    overrides = {"recipe.max_staleness": 4, "loss.use": loss, "replay_buffer.isolate": True}
    assert plan(overrides) == 5


@given(count=st.integers(1, 200), parts=st.integers(1, 12))
def test_a_step_is_split_evenly_and_nothing_is_lost(count: int, parts: int) -> None:
    sequences = [TrainSequence([index], [False]) for index in range(count)]
    micro_batches = _split(sequences, parts)
    assert [sequence for batch in micro_batches for sequence in batch] == sequences
    assert len(micro_batches) == min(count, parts)
    sizes = [len(batch) for batch in micro_batches]
    assert max(sizes) - min(sizes) <= 1
