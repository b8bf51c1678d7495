"""Every reward of this package keeps the contract of rewards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forge_core import Forge, Reward, Selection, Task
from forge_grpo import plugin
from forge_testing.conformance.reward import RewardConformance


class _Rewards(RewardConformance):
    name = ""

    @pytest.fixture
    def selection(self, forge_app: Callable[..., Forge]) -> Selection[Reward]:
        component = forge_app(plugin).plugins.catalog.get("reward", self.name)
        return Selection(family="reward", component=component, settings=component.settings())


class TestExactMatch(_Rewards):
    name = "exact_match"


class TestThinking(_Rewards):
    name = "thinking"


class TestLastNumber(_Rewards):
    name = "last_number"

    @pytest.fixture
    def task(self) -> Task:
        return Task("sum", "4 + 9", answer="13")

    @pytest.fixture
    def completions(self) -> list[str]:
        return ["13", "4 + 9", "9 + 4 is 13.", "", "no number", "1.5"]


class TestMath(_Rewards):
    name = "math"
    deadline = 1.5
    is_killed = "SymPy evaluates towers of powers, and nothing but a kill interrupts it"

    @pytest.fixture
    def task(self) -> Task:
        return Task("latex", "Solve.", answer=r"\frac{3}{4}")

    @pytest.fixture
    def completions(self) -> list[str]:
        return [r"\boxed{\frac{3}{4}}", "0.75", "3/4", "75%", "3", "4", r"$\{3, 4\}$", ""]
