"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forge_core import (
    AdvantageComponent,
    DatasetComponent,
    EnvironmentComponent,
    Finding,
    LossComponent,
    Preset,
    RecipeComponent,
    RewardComponent,
    Settings,
    hookimpl,
)
from forge_grpo.checks import (
    check_answers,
    check_chats,
    check_single_turn,
    grpo_needs,
    max_staleness,
)
from forge_grpo.rewards.math_check import check_math
from forge_grpo.settings import (
    ArithmeticSettings,
    ExactMatchSettings,
    GrpoLossSettings,
    GrpoSettings,
    GspoSettings,
    LastNumberSettings,
    MathSettings,
    ReinforceSettings,
    SingleTurnSettings,
    ThinkingSettings,
)

PRESETS = Path(__file__).parent / "presets"


@hookimpl
def forge_recipes() -> Iterable[RecipeComponent]:
    yield RecipeComponent(
        name="grpo",
        settings=GrpoSettings,
        build="forge_grpo.recipe:GrpoRecipe",
        requires={"dataset", "rewards", "environment", "generator", "trainer", "loss", "advantage"},
        provides={"advantages", "sampler_logprobs", "reference_logprobs"},
        defaults={"loss": {"use": "grpo"}, "training": {"batch_size": 64}},
        max_staleness=max_staleness,
        summary="group relative policy optimization with verifiable rewards",
    )


@hookimpl
def forge_advantages() -> Iterable[AdvantageComponent]:
    yield AdvantageComponent(
        name="group_mean",
        settings=Settings,
        build="forge_grpo.advantages:GroupMean",
        scale="std",
        summary="reward minus the mean of its group (GRPO)",
        default=True,
    )


@hookimpl
def forge_losses() -> Iterable[LossComponent]:
    yield LossComponent(
        name="grpo",
        settings=GrpoLossSettings,
        build="forge_grpo.losses.grpo:Grpo",
        needs=grpo_needs,
        summary="clipped ratio times advantage, optional KL and entropy (GRPO, DAPO)",
    )
    yield LossComponent(
        name="gspo",
        settings=GspoSettings,
        build="forge_grpo.losses.gspo:Gspo",
        needs={"advantages", "sampler_logprobs"},
        summary="ratio and clip of whole sequences (GSPO)",
    )
    yield LossComponent(
        name="reinforce",
        settings=ReinforceSettings,
        build="forge_grpo.losses.reinforce:Reinforce",
        needs={"advantages"},
        summary="plain policy gradient",
    )


@hookimpl
def forge_rewards() -> Iterable[RewardComponent]:
    yield RewardComponent(
        name="exact_match",
        settings=ExactMatchSettings,
        build="forge_grpo.rewards.exact_match:ExactMatch",
        check_tasks=check_answers,
        summary="1 if the completion is the answer",
    )
    yield RewardComponent(
        name="last_number",
        settings=LastNumberSettings,
        build="forge_grpo.rewards.last_number:LastNumber",
        check_tasks=check_answers,
        summary="1 if the last whole number in the completion is the answer",
    )
    yield RewardComponent(
        name="math",
        settings=MathSettings,
        build="forge_grpo.rewards.math:Math",
        check_tasks=check_math,
        summary="1 if the final answer equals the reference as mathematics (Math-Verify)",
    )
    yield RewardComponent(
        name="thinking",
        settings=ThinkingSettings,
        build="forge_grpo.rewards.thinking:Thinking",
        summary="form of a reasoned answer: <think>...</think> and then text",
    )


@hookimpl
def forge_environments() -> Iterable[EnvironmentComponent]:
    yield EnvironmentComponent(
        name="single_turn",
        settings=SingleTurnSettings,
        build="forge_grpo.environments.single_turn:SingleTurn",
        check=check_single_turn,
        check_tasks=check_chats,
        summary="one prompt, one completion",
        default=True,
    )


@hookimpl
def forge_datasets() -> Iterable[DatasetComponent]:
    yield DatasetComponent(
        name="arithmetic",
        settings=ArithmeticSettings,
        build="forge_grpo.datasets.arithmetic:Arithmetic",
        summary="all problems of two operands, train and test disjoint",
    )


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.packages import version

    yield version("math-verify", tested="0.9.0")


@hookimpl
def forge_presets() -> Iterable[Preset]:
    yield Preset(
        name="quickstart",
        path=PRESETS / "quickstart.yaml",
        summary="a tiny model learns two-digit addition by SFT, then GRPO; minutes on a laptop",
    )
