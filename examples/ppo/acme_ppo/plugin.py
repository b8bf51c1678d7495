"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from acme_ppo.settings import CriticSettings, PpoSettings
from forge_core import Component, RecipeComponent, hookimpl

CRITIC: Component[Any] = Component(
    name="critic",
    settings=CriticSettings,
    build="acme_ppo.critic:Critic",
    summary="the value of each token's state",
)


@hookimpl
def forge_recipes():
    yield RecipeComponent(
        name="ppo",
        settings=PpoSettings,
        build="acme_ppo.recipe:Ppo",
        requires={"dataset", "rewards", "environment", "generator", "trainer", "loss"},
        provides={"advantages", "returns", "sampler_logprobs"},
        defaults={"loss": {"use": "grpo"}, "training": {"batch_size": 32}},
        summary="PPO with a critic",
    )
