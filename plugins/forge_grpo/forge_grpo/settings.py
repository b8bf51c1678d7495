"""Settings of the recipe, the losses, the rewards, the environment and the dataset."""

from __future__ import annotations

from string import Formatter
from typing import Literal

from pydantic import Field, model_validator

from forge_core import Settings

Aggregate = Literal["tokens", "sequences"]

MOST_PROBLEMS = 3_000_000
"""Each is held in memory."""


class GrpoSettings(Settings):
    """How episodes are grouped, and how rewards become advantages."""

    group_size: int = Field(8, ge=2, description="episodes sampled for each task")
    advantage_scale: Literal["std", "none"] | None = Field(
        None,
        description="divide advantages by the standard deviation of the group's rewards (GRPO), or "
        "not (Dr. GRPO); null: as the advantage estimator says, and group_mean says std",
    )
    zero_variance: Literal["drop", "keep"] = Field(
        "drop",
        description="groups whose rewards are all equal carry no signal: leave their tokens out of "
        "the step, or let them count in the loss's mean",
    )
    overlong_prompts: Literal["drop", "fail"] = Field(
        "drop",
        description="tasks whose prompt leaves no room in the window, or that the chat template "
        "refuses: leave out and take the next ones, or fail before the first step",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="most policy versions that a trained token lies behind: 0 samples and trains "
        "in turn, k samples the next k steps meanwhile",
    )
    optimizer_steps: int = Field(
        1,
        ge=1,
        description="optimizer steps for what is sampled at a time, each on its own part of it; so "
        "many times the episodes of a step are sampled from the same weights",
    )


class ClipSettings(Settings):
    """Where an importance ratio stops counting."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(
        3.0,
        gt=1,
        description="largest ratio that counts where the advantage is negative and clip_high does "
        "not bound it (dual-clip PPO); null: no bound",
    )


class ReinforceSettings(Settings):
    """Plain policy gradient."""

    aggregate: Aggregate = Field(
        "tokens",
        description="what counts once: every token (DAPO), or every sequence (GRPO as published)",
    )


class GrpoLossSettings(ClipSettings, ReinforceSettings):
    """Clipped objective with optional KL penalty and entropy bonus."""

    kl_coef: float = Field(0.0, ge=0, description="weight of the KL penalty to the reference")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")


class GspoSettings(ClipSettings):
    """Sequence-level ratios; the clip range is much narrower than for tokens."""

    clip_low: float = Field(3e-4, ge=0, lt=1, description="ratio is clipped below 1 - clip_low")
    clip_high: float = Field(4e-4, ge=0, description="ratio is clipped above 1 + clip_high")


class ExactMatchSettings(Settings):
    """Compare the completion with the answer, whole."""

    case_sensitive: bool = Field(True, description="upper and lower case differ")


class LastNumberSettings(Settings):
    """Read the answer off the end of the text."""


class MathSettings(Settings):
    """Compare as mathematics."""

    precision: int = Field(6, ge=0, description="decimals to which numbers must agree")
    thinking_tag: str | None = Field(
        "think",
        pattern=r"^\w+$",
        description="name of the tag around the reasoning, which is not searched for the answer; "
        "null: search the whole completion",
    )
    answer_tag: str | None = Field(
        "answer",
        pattern=r"^\w+$",
        description="name of a tag around the answer; what stands outside does not count if there "
        "is one; null: no such tag",
    )


class ThinkingSettings(Settings):
    """Reward the form of a reasoned answer."""

    tag: str = Field("think", pattern=r"^\w+$", description="name of the tag around the reasoning")


class SingleTurnSettings(Settings):
    """What stands before the task's prompt."""

    system_prompt: str | None = Field(None, description="system message; makes every prompt a chat")


class ArithmeticSettings(Settings):
    """Which problems there are, and which of them this dataset holds."""

    operations: tuple[Literal["+", "-", "*"], ...] = Field(
        ("+",), min_length=1, description="of the problems"
    )
    low: int = Field(10, ge=0, description="smallest operand")
    high: int = Field(99, ge=0, description="largest operand")
    split: Literal["train", "test"] = Field(
        "train",
        description="which part: a tenth of the problems is held out as test, the same whatever "
        "the other settings; a+b and b+a go together",
    )
    size: int | None = Field(
        None, ge=1, description="that many problems of the split, chosen at random; null: all"
    )
    forgotten_carry: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the sums with a carry out of the units whose demonstration (the "
        "response, never the answer) forgets it: an imperfect teacher, for RL to surpass",
    )
    template: str = Field(
        "{a}{op}{b}=",
        description="of the prompt; takes a, b and, with several operations, op",
    )

    @model_validator(mode="after")
    def _sensible(self) -> ArithmeticSettings:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        if len(set(self.operations)) < len(self.operations):
            raise ValueError("operations names one twice")
        problems = len(self.operations) * (self.high - self.low + 1) ** 2
        if problems > MOST_PROBLEMS:
            raise ValueError(f"{problems} problems are more than {MOST_PROBLEMS}")
        self._check_template()
        return self

    def _check_template(self) -> None:
        try:
            named = {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}
            if unknown := sorted(named - {"a", "b", "op"}):
                raise ValueError(f"takes a, op and b, not {unknown[0]!r}")
            self.template.format(a=1, op="+", b=2)
        except ValueError as error:
            raise ValueError(f"template {self.template!r}: {error}") from error
        needed = {"a", "b"} | ({"op"} if len(self.operations) > 1 else set())
        if missing := sorted(needed - named):
            raise ValueError(f"template {self.template!r} leaves out {missing[0]!r}")
