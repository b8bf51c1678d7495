"""What a config would take, before anything starts: for ``forge plan``. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge_core.models.shape import FAMILIES, ModelShape, model_shape
from forge_core.run.memory import Memory, Workload
from forge_core.run.plan import check_components, early_context

if TYPE_CHECKING:
    from forge_core.component import BuildContext, Placement
    from forge_core.config.resolve import RunConfig, StageConfig


@dataclass(frozen=True, slots=True)
class Longest:
    """Most tokens of a sequence.

    Args:
        tokens: so many.
        source: what sets them, in words: a key, or the model's window.
    """

    tokens: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutlook:
    """What one stage would take.

    Args:
        config: of the stage.
        placements: section -> component's name and where its replicas go, for what the stage uses.
        sequences: trained in an optimizer step.
        longest: what bounds a sequence; None without a known model.
        memory: of the trainer's fullest rank, or why it is not known.
        staleness: most optimizer steps between the weights that sample a token and those that it
            trains; None where nothing is sampled to train on.
    """

    config: StageConfig
    placements: dict[str, tuple[str, Placement]]
    sequences: int
    longest: Longest | None
    memory: Memory | str
    staleness: int | None


def outlook(config: RunConfig) -> list[StageOutlook]:
    """What each stage would take.

    Raises:
        UsageError: a component cannot do what its stage asks of it.
    """
    return [_stage(stage) for stage in config.stages]


def _stage(stage: StageConfig) -> StageOutlook:
    context = early_context(stage)
    check_components(stage)
    requires = stage.recipe.build(context).requires
    uses = {"trainer": "trainer" in requires, "generator": "generator" in requires}
    scored = stage.eval_dataset is not None and bool(stage.rewards)
    placements = {
        section: (selection.name, placement)
        for section, selection, placement, used in (
            ("trainer", stage.trainer, stage.trainer_placement, uses["trainer"]),
            ("generator", stage.generator, stage.generator_placement, uses["generator"] or scored),
        )
        if selection is not None and used
    }
    shape = model_shape(stage.model)
    longest = _longest(stage, shape, sampled=uses["generator"]) if shape is not None else None
    training = stage.training
    return StageOutlook(
        config=stage,
        placements=placements,
        sequences=(training.batch_size or 1) * training.gradient_accumulation_steps,
        longest=longest,
        memory=_memory(stage, context, shape, longest),
        staleness=getattr(stage.recipe.settings, "max_staleness", 0) if uses["generator"] else None,
    )


def _longest(stage: StageConfig, shape: ModelShape, *, sampled: bool) -> Longest:
    """The model's window, or less where the recipe or the sampler has a limit.

    A config does not say how long its prompts are; what was sampled is prompt and completion
    together, and these fit into the sampler's window.
    """
    limits = {"recipe.max_length": getattr(stage.recipe.settings, "max_length", None)}
    if sampled and stage.generator is not None:
        settings = stage.generator.settings
        limits["generator.max_model_len"] = getattr(settings, "max_model_len", None)
        engine = getattr(settings, "engine", {})
        limits["generator.engine.max_model_len"] = engine.get("max_model_len")
    known = {source: limit for source, limit in limits.items() if limit is not None}
    source, tokens = min(known.items(), key=lambda item: item[1], default=("", shape.window))
    if tokens < shape.window:
        return Longest(tokens, source)
    return Longest(shape.window, "the model's window")


def _memory(
    stage: StageConfig, context: BuildContext, shape: ModelShape | None, longest: Longest | None
) -> Memory | str:
    """The trainer's own account of it."""
    if stage.trainer is None:
        return "no trainer is installed"
    if stage.trainer.component.memory is None:
        return f"trainer {stage.trainer.name} does not tell it"
    if shape is None or longest is None:
        where = stage.model.path or stage.model.name or "model.path"
        families = ", ".join(FAMILIES)
        return f"{where}/config.json is not there, or not of a known architecture ({families})"
    loss = stage.loss.build(context) if stage.loss is not None else None
    workload = Workload(
        shape=shape,
        tokens=(stage.training.batch_size or 1) * longest.tokens,
        longest=longest.tokens,
        reference=loss is not None and "reference_logprobs" in loss.needs,
    )
    placed = replace(context, world_size=stage.trainer_placement.procs)
    return stage.trainer.component.memory(stage.trainer.settings, placed, workload)
