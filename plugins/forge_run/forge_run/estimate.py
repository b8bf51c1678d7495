"""What a config would take, before anything starts: for ``forge plan``. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge_core import Memory, ModelShape, Workload
from forge_models.shape import FAMILIES, model_config, model_shape
from forge_run.preflight import (
    check_components,
    check_reference,
    check_sampler,
    check_services,
)
from forge_run.unused import check_unused

if TYPE_CHECKING:
    from forge_core import ModelSection, Placement, RunConfig, Selection, StageConfig, Trainer


PASS_TOKENS = 1024
"""Activations are estimated for a forward pass of so many tokens where nothing bounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """Most tokens of a sequence.

    Args:
        tokens: so many, as far as the config says.
        source: what sets them, in words: a key, or the model's window.
        bounded: False where only the model's window does, which data seldom fill.
        sampled: they are those of one completion; prompts, and further turns, come on top.
        advice: the key that would bound them; empty where none is known.
    """

    tokens: int
    source: str
    bounded: bool = True
    sampled: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the fullest rank of a trainer holds.

    Args:
        memory: term by term.
        longest: what bounds a sequence.
        bounded: the activations are those of the longest forward pass; else they are those of
            ``memory.tokens`` tokens, because nothing bounds a pass.
        by_trainer: the trainer's own settings bound a pass, and a longer sequence goes alone.
    """

    memory: Memory
    longest: Longest
    bounded: bool = True
    by_trainer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """What one stage would take.

    Args:
        config: of the stage.
        placements: service -> its components' names and where its replicas go, for those that the
            stage uses.
        sequences: trained in an optimizer step.
        longest: what bounds a sequence; None without a known model.
        memory: of the fullest rank of the trainer, and of the reference where it is a service of
            its own; or why it is not known.
        sampled: the recipe samples what it trains on.
        staleness: most optimizer steps between the weights that sample a token and those that it
            trains; None where the recipe does not tell.
    """

    config: StageConfig
    placements: dict[str, tuple[str, Placement]]
    sequences: int
    longest: Longest | None
    memory: dict[str, Held | str]
    sampled: bool
    staleness: int | None


def estimate(config: RunConfig) -> list[StageEstimate]:
    """What each stage would take.

    Raises:
        UsageError: a component cannot do what its stage asks of it.
    """
    check_unused(config)
    return [_stage(stage) for stage in config.stages]


def _stage(stage: StageConfig) -> StageEstimate:
    check_components(stage)
    check_services(stage)
    check_reference(stage)
    check_sampler(stage)
    requires = stage.recipe.requires
    sampled = "generator" in requires
    scored = stage.evaluates()
    uses = {"trainer": "trainer" in requires, "generator": sampled or scored}
    shape = model_shape(stage.model)
    longest = _longest(stage, shape, sampled=sampled) if shape is not None else None
    anchored = stage.loss is not None and "reference_logprobs" in stage.loss.needs
    memory = {
        "trainer": _memory(
            stage, "trainer", stage.trainer, longest, reference=anchored and not stage.reference
        )
    }
    if stage.reference is not None:
        model = stage.models.get(stage.reference_model, stage.model)
        memory["reference"] = _memory(
            stage, "reference", stage.reference, longest, model=model, trained=False
        )
    for name, service in stage.services().items():
        selection = stage.service_selection(service)
        if selection is not None and selection.family == "trainer":
            model, trained = stage.models.get(service.model, stage.model), service.loss is not None
            memory[name] = _memory(stage, name, selection, longest, model=model, trained=trained)
    training = stage.training
    return StageEstimate(
        config=stage,
        placements={
            service: (_components(stage, service), placement)
            for service, placement in stage.placements().items()
            if uses.get(service, True)
        },
        sequences=(training.batch_size or 1) * training.gradient_accumulation_steps,
        longest=longest,
        memory=memory,
        sampled=sampled,
        staleness=stage.recipe.max_staleness,
    )


def _components(stage: StageConfig, service: str) -> str:
    """Names of a service's components; none for what is the kernel's own."""
    if service == "rewards":
        return ", ".join(stage.rewards)
    added, own = stage.sections.get(service), stage.services().get(service)
    if own is not None:
        selection = stage.service_selection(own)
    else:
        selection = getattr(stage, service, None) if added is None else added.selection
    return selection.name if selection is not None else ""


def _longest(stage: StageConfig, shape: ModelShape, *, sampled: bool) -> Longest:
    """What bounds a sequence: the recipe, the sampler, or the model's window alone.

    A config does not say how long its prompts and rows are. What was sampled is prompt and
    completion together, and these fit into the sampler's window.
    """
    limits = [stage.recipe.max_tokens]
    if sampled and stage.generator is not None:
        limits.append(stage.generator.max_tokens)
    known = [(limit.tokens, limit.key) for limit in limits if limit.tokens is not None]
    tokens, key = min(known, default=(shape.window, ""))
    if known and tokens <= shape.window:
        return Longest(tokens=tokens, source=key)
    completion = stage.sampling.max_tokens
    if sampled and completion < shape.window:
        return Longest(tokens=completion, source="sampling.max_tokens", sampled=True)
    advice = next((limit.key for limit in limits if limit.key), "")
    return Longest(
        tokens=shape.window, source="the model's window", bounded=bool(known), advice=advice
    )


def _memory(
    stage: StageConfig,
    service: str,
    selection: Selection[Trainer] | None,
    longest: Longest | None,
    *,
    model: ModelSection | None = None,
    **work: bool,
) -> Held | str:
    """A trainer's own account of it.

    Args:
        stage: whose it is.
        service: that the trainer is.
        selection: the component.
        longest: what bounds a sequence.
        model: that it holds; None: the stage's.
        work: what else ``Workload`` says of it.
    """
    if selection is None:
        return "no trainer is installed"
    if not selection.tells_memory:
        return f"trainer {selection.name} does not tell it"
    model = model or stage.model
    shape = model_shape(model)
    if shape is None or longest is None:
        return _unknown(model)
    procs = stage.placements()[service].procs
    context = replace(stage.early_context(), model=model, world_size=procs)

    def held(tokens: int, sequence: int) -> Memory:
        workload = Workload(shape=shape, tokens=tokens, longest=sequence, **work)
        return selection.memory(context, workload)

    whole = (stage.training.batch_size or 1) * longest.tokens
    if longest.bounded:
        return Held(memory=held(whole, longest.tokens), longest=longest)
    # Twice as much in a micro-batch makes no difference to a trainer that splits it.
    split = held(whole, 1)
    if split.tokens == held(2 * whole, 1).tokens:
        return Held(memory=split, longest=longest, by_trainer=True)
    return Held(memory=held(PASS_TOKENS, PASS_TOKENS), longest=longest, bounded=False)


def _unknown(model: ModelSection) -> str:
    """Why a model's size is not known."""
    config, families = model_config(model), ", ".join(FAMILIES)
    if config is None:
        where = model.path or model.name or "model.path"
        return f"{where}/config.json is not there"
    return (
        f"the model, of model_type {config.get('model_type')!r}, is not of a known architecture "
        f"({families}, without biases in attention)"
    )
