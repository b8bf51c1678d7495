"""Environment ``single_turn``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forge_core import Environment, Forge, Message, Selection, Task
from forge_grpo import plugin
from forge_grpo.environments.single_turn import SingleTurn
from forge_grpo.settings import SingleTurnSettings
from forge_testing.conformance.environment import EnvironmentConformance


class TestSingleTurn(EnvironmentConformance):
    @pytest.fixture(params=[{}, {"system_prompt": "Answer with a number."}], ids=str)
    def selection(
        self, request: pytest.FixtureRequest, forge_app: Callable[..., Forge]
    ) -> Selection[Environment]:
        component = forge_app(plugin).plugins.catalog.get("environment", "single_turn")
        settings = component.settings.model_validate(request.param)
        return Selection(family="environment", component=component, settings=settings)


CHAT = (Message("user", "1+1?"),)


async def test_without_system_prompt_the_task_s_own_prompt_is_used() -> None:
    environment = SingleTurn(SingleTurnSettings())
    assert (await environment.start(Task("a", "1+1="), 0)).prompt == "1+1="
    assert (await environment.start(Task("a", CHAT), 0)).prompt == CHAT


@pytest.mark.parametrize("prompt", ["1+1?", CHAT])
async def test_a_system_prompt_stands_first(prompt: str | tuple[Message, ...]) -> None:
    environment = SingleTurn(SingleTurnSettings(system_prompt="Be brief."))
    expected = (Message("system", "Be brief."), Message("user", "1+1?"))
    assert (await environment.start(Task("a", prompt), 0)).prompt == expected


async def test_it_is_over_after_one_completion() -> None:
    interaction = await SingleTurn(SingleTurnSettings()).start(Task("a", "1+1="), 0)
    assert await interaction.respond("2", "stop") is None
