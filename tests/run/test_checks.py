"""What a plugin's component returns is checked where it returns it: one line that names the
component, the plugin and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forge_core import Forge, PluginError, Settings, Task, UsageError, hookimpl
from forge_testing.context import component
from forge_testing.runs import small_config

Config = dict[str, Any]


class NoSettings(Settings):
    """Nothing to set."""


class Acme:
    """A plugin with one component, which builds what the test hands over.

    Args:
        hook: of the family.
        build: ``(settings, context) -> the component``.
        says: what else the component says of itself.
    """

    def __init__(self, hook: str, build: Callable[[Any, Any], Any], **says: Any) -> None:
        if hook == "forge_recipes":
            says = {"requires": {"dataset", "trainer", "loss"}, **says}
        mine = component(hook, build, **says)
        setattr(self, hook, hookimpl(lambda: [mine]))


class Recipe:
    """Sound; tests spoil one part of it."""

    def plan(self, config: Any, dataset_length: int) -> Any:
        return 2

    async def run(self, stage: Any) -> None:
        """Nothing."""


class Loss:
    def __call__(self, logprobs: Any, batch: Any, outputs: Any) -> Any:
        raise NotImplementedError


def checked(plugin: Acme, **sections: Any) -> str:
    """The error of ``forge run --dry-run`` for such a plugin: one line."""
    app = Forge(plugins=[plugin])
    with pytest.raises(PluginError) as caught:
        app.check(small_config(**sections))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_recipe(**changes: Any) -> str:
    """The error for a recipe that has these in place of the sound one's."""
    says = {name: changes.pop(name) for name in ("requires", "provides") if name in changes}
    made = type("Made", (Recipe,), changes)
    return checked(
        Acme("forge_recipes", lambda settings, context: made(), **says),
        recipe={"use": "mine"},
        loss={"use": "cross_entropy"},
        training={"steps": 2, "batch_size": 4},
    )


@pytest.mark.parametrize("steps", [3.5, None, 0, -1, True, "3"])
def test_a_plan_that_is_no_number_of_steps(steps: Any) -> None:
    line = with_recipe(plan=lambda self, config, length: steps)
    assert line.startswith("recipe 'mine' (plugin Acme): plan returned ")
    assert repr(steps) in line
    assert "an int of at least 1" in line


def test_an_integer_of_another_type_is_a_number_of_steps() -> None:
    numpy = pytest.importorskip("numpy")
    made = type("Made", (Recipe,), {"plan": lambda self, config, length: numpy.int64(3)})
    app = Forge(plugins=[Acme("forge_recipes", lambda settings, context: made())])
    _, steps = app.check(small_config(recipe={"use": "mine"}, loss={"use": "cross_entropy"}))
    assert steps == [3]
    assert type(steps[0]) is int


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requires": ["dataset"]}, "requires must be a set of names"),
        ({"provides": "advantages"}, "provides must be a set of names"),
        ({"requires": None}, "requires must be a set of names"),
        ({"requires": {"dataset", "polcy"}}, "requires names 'polcy', which is not a section"),
        ({"requires": {"trainers"}}, "did you mean 'trainer'? (allowed: advantage, "),
        ({"run": lambda self, stage: None}, "run must be a coroutine: write `async def`"),
        ({"plan": None}, "expected an object with plan, run (missing: plan)"),
    ],
)
def test_a_recipe_that_is_none(changes: Config, expected: str) -> None:
    line = with_recipe(**changes)
    assert line.startswith("recipe 'mine' (plugin Acme): ")
    assert expected in line


def test_a_plan_that_raises_names_the_recipe() -> None:
    line = with_recipe(plan=lambda self, config, length: config.policy)
    assert line.startswith("recipe 'mine' (plugin Acme): plan failed: AttributeError: ")


@pytest.mark.parametrize("needs", [["advantages"], "advantages", None])
def test_needs_that_is_no_set(needs: Any) -> None:
    plugin = Acme("forge_losses", lambda *_: Loss(), needs=needs)
    line = checked(plugin, loss={"use": "mine"})
    assert line.startswith("loss 'mine' (plugin Acme): needs must be a set of names")
    assert "frozenset({'advantages'})" in line


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ("top_logprobs", "'top_logprobs': say once how many, as in 'top_logprobs:64'"),
        ("top_logprobs:0", "'top_logprobs:0': say once how many, as in 'top_logprobs:64'"),
        ("entropy:2", "'entropy:2': write 'entropy', without a number"),
        ("log_softmax", "log_softmax, and so a method `terms(self, log_softmax, batch)`"),
    ],
)
def test_an_output_of_the_policy_that_is_asked_for_wrongly(needs: str, expected: str) -> None:
    plugin = Acme("forge_losses", lambda *_: Loss(), needs={needs})
    line = checked(plugin, loss={"use": "mine"})
    assert line == f"loss 'mine' (plugin Acme): needs {expected}"


def test_an_output_of_the_policy_that_the_trainer_does_not_give() -> None:
    class Outputs:
        @hookimpl
        def forge_losses(self) -> Any:
            return [component("forge_losses", lambda *_: Loss(), needs={"hidden_states"})]

        @hookimpl
        def forge_trainers(self) -> Any:
            return [component("forge_trainers", lambda *_: None, gives={"top_logprobs"})]

    app = Forge(plugins=[Outputs()])
    with pytest.raises(UsageError) as caught:
        app.check(small_config(loss={"use": "mine"}, trainer={"use": "mine"}))
    line = str(caught.value)
    assert "loss 'mine' needs hidden_states of the policy, which trainer 'mine' (stage " in line
    assert line.endswith("does not give (it gives: entropy, top_logprobs)")


def test_a_loss_that_is_async() -> None:
    async def called(self: Any, logprobs: Any, batch: Any, outputs: Any) -> None: ...

    made = type("Made", (Loss,), {"__call__": called})
    line = checked(Acme("forge_losses", lambda settings, context: made()), loss={"use": "mine"})
    assert line == "loss 'mine' (plugin Acme): __call__ must not be async"


def test_a_build_that_raises_names_the_component() -> None:
    line = checked(Acme("forge_losses", lambda settings, context: 1 / 0), loss={"use": "mine"})
    expected = "build failed: ZeroDivisionError: division by zero"
    assert line == f"loss 'mine' (plugin Acme): {expected}"


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (None, "build returned None; expected an object with __len__, __getitem__"),
        (iter([]), "build returned a list_iterator; expected"),
        (Task, "build returned the class Task; expected"),
        (["1+1="], "item 0 is a str ('1+1='), not a forge_core.Task"),
        ([{"prompt": "1+1="}], "item 0 is a dict ({'prompt': '1+1='}), not a forge_core.Task"),
    ],
)
def test_a_dataset_that_is_none(built: Any, expected: str) -> None:
    line = checked(Acme("forge_datasets", lambda settings, context: built), dataset={"use": "mine"})
    assert line.startswith("dataset 'mine' (plugin Acme): ")
    assert expected in line


@pytest.mark.parametrize(
    ("hook", "section"),
    [
        ("forge_environments", {"environment": {"use": "mine"}}),
        ("forge_generators", {"generator": {"use": "mine"}}),
        ("forge_trainers", {"trainer": {"use": "mine"}}),
        ("forge_transports", {"transport": {"use": "mine"}}),
        ("forge_trackers", {"trackers": {"mine": {}}}),
        ("forge_runtimes", {"runtime": {"use": "mine"}}),
        ("forge_rewards", {"rewards": {"mine": {}}}),
    ],
)
def test_every_family_is_checked_where_it_is_built(hook: str, section: Config) -> None:
    app = Forge(plugins=[Acme(hook, lambda settings, context: None)])
    config = app.resolve(small_config(**section))
    (stage,) = config.stages
    family = hook.removeprefix("forge_").removesuffix("s")
    selection = {
        "tracker": config.trackers.get("mine"),
        "runtime": config.runtime,
        "reward": stage.rewards["mine"].selection if "mine" in stage.rewards else None,
    }.get(family) or getattr(stage, family)
    with pytest.raises(
        PluginError, match=rf"^{family} 'mine' \(plugin Acme\): build returned None"
    ):
        selection.build(None)


def test_an_environment_that_is_none() -> None:
    async def start(self: Any, task: Any, seed: int) -> None: ...

    def line(**members: Any) -> str:
        made = type("Made", (), {"max_turns": 1, "start": start, **members})
        app = Forge(plugins=[Acme("forge_environments", lambda settings, context: made())])
        (stage,) = app.resolve(small_config(environment={"use": "mine"})).stages
        assert stage.environment is not None
        with pytest.raises(PluginError) as caught:
            stage.environment.build(None)  # type: ignore[arg-type]
        return str(caught.value)

    sync = line(start=lambda self, task, seed: None)
    assert sync == (
        "environment 'mine' (plugin Acme): start must be a coroutine: write `async def`"
    )
    assert line(max_turns=None).endswith("max_turns must be an int of at least 1, not None")
