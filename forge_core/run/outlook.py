"""What a config would take, before anything starts: for ``forge plan``. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge_core.models.shape import FAMILIES, ModelShape, model_shape
from forge_core.run.memory import Memory, Workload
from forge_core.run.plan import (
    check_components,
    check_reference,
    check_sampler,
    early_context,
    evaluates,
    placements,
)
from forge_core.run.unused import check_evaluation

if TYPE_CHECKING:
    from forge_core.component import Placement, Selection
    from forge_core.config.resolve import RunConfig, StageConfig
    from forge_core.protocols import Trainer


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
        placements: service -> its components' names and where its replicas go, for those that the
            stage uses.
        sequences: trained in an optimizer step.
        longest: what bounds a sequence; None without a known model.
        memory: of the fullest rank of the trainer, and of the reference where it is a service of
            its own; or why it is not known.
        staleness: most optimizer steps between the weights that sample a token and those that it
            trains; None where nothing is sampled to train on.
    """

    config: StageConfig
    placements: dict[str, tuple[str, Placement]]
    sequences: int
    longest: Longest | None
    memory: dict[str, Memory | str]
    staleness: int | None


def outlook(config: RunConfig) -> list[StageOutlook]:
    """What each stage would take.

    Raises:
        UsageError: a component cannot do what its stage asks of it.
    """
    check_evaluation(config)
    return [_stage(stage) for stage in config.stages]


def _stage(stage: StageConfig) -> StageOutlook:
    context = early_context(stage)
    check_components(stage)
    loss = stage.loss.build(context) if stage.loss is not None else None
    check_reference(stage, loss)
    check_sampler(stage, loss)
    requires = stage.recipe.build(context).requires
    sampled = "generator" in requires
    scored = evaluates(stage)
    uses = {"trainer": "trainer" in requires, "generator": sampled or scored}
    shape = model_shape(stage.model)
    longest = _longest(stage, shape, sampled=sampled) if shape is not None else None
    anchored = loss is not None and "reference_logprobs" in loss.needs
    memory = {
        "trainer": _memory(stage, "trainer", longest, reference=anchored and not stage.reference)
    }
    if stage.reference is not None:
        memory["reference"] = _memory(stage, "reference", longest, trained=False)
    training = stage.training
    return StageOutlook(
        config=stage,
        placements={
            service: (_components(stage, service), placement)
            for service, placement in placements(stage).items()
            if uses.get(service, True)
        },
        sequences=(training.batch_size or 1) * training.gradient_accumulation_steps,
        longest=longest,
        memory=memory,
        staleness=getattr(stage.recipe.settings, "max_staleness", 0) if sampled else None,
    )


def _components(stage: StageConfig, service: str) -> str:
    """Names of a service's components; none for what is the kernel's own."""
    if service == "rewards":
        return ", ".join(stage.rewards)
    selection = getattr(stage, service, None)
    return selection.name if selection is not None else ""


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
    stage: StageConfig, section: str, longest: Longest | None, **work: bool
) -> Memory | str:
    """A trainer's own account of it.

    Args:
        stage: whose it is.
        section: that has the trainer.
        longest: what bounds a sequence.
        work: what else ``Workload`` says of it.
    """
    selection: Selection[Trainer] | None = getattr(stage, section)
    if selection is None:
        return "no trainer is installed"
    if selection.component.memory is None:
        return f"trainer {selection.name} does not tell it"
    shape = model_shape(stage.model)
    if shape is None or longest is None:
        where = stage.model.path or stage.model.name or "model.path"
        families = ", ".join(FAMILIES)
        return f"{where}/config.json is not there, or not of a known architecture ({families})"
    workload = Workload(
        shape=shape,
        tokens=(stage.training.batch_size or 1) * longest.tokens,
        longest=longest.tokens,
        **work,
    )
    context = replace(early_context(stage), world_size=placements(stage)[section].procs)
    return selection.component.memory(selection.settings, context, workload)
