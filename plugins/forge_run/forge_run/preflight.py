"""How long a stage is, and whether its parts fit together: known before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge_core import PluginError, TrainerComponent, UsageError, field_needs
from forge_core.contracts.blame import title
from forge_run.answers import check_sections

if TYPE_CHECKING:
    from forge_core import Loss, RecipeService, Runtime, Selection, StageConfig, Trainer

SERVICE_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_components(stage: StageConfig) -> None:
    """Let each component refuse what it cannot do with its settings and number of ranks.

    Raises:
        UsageError: names the key, and what is allowed.
    """
    context = replace(stage.early_context(), loss=stage.loss, transport=stage.transport)
    if stage.trainer is not None and stage.loss is not None:
        check_outputs(stage.trainer, stage.loss, f"stage {stage.name!r}")
    chosen: list[tuple[Selection[Any] | None, int]] = [
        (stage.trainer, stage.trainer_placement.procs),
        (stage.generator, stage.generator_placement.procs),
        *((selection, 1) for selection in (stage.transport, stage.recipe, stage.loss)),
        *((selection, 1) for selection in (stage.optimizer, stage.schedule, stage.advantage)),
        (stage.environment if stage.samples() else None, 1),
        *((selection, 1) for selection in (stage.dataset, stage.eval_dataset)),
        *((part.selection, 1) for part in stage.rewards.values()),
        *((added.selection, added.placement.procs) for added in stage.sections.values()),
    ]
    for selection, procs in chosen:
        if selection is not None:
            selection.check(replace(context, world_size=procs))
    check_optimizer(stage)
    if stage.reference is not None:
        procs = stage.reference_placement.procs
        try:
            stage.reference.check(replace(stage.early_context(), world_size=procs))
        except UsageError as error:  # it speaks of the trainer that it is
            key = str(error)
            own = key.startswith("trainer.")
            key = f"reference.{key.removeprefix('trainer.')}" if own else f"reference: {key}"
            raise UsageError(key) from error


def check_optimizer(stage: StageConfig) -> None:
    """A trainer that takes an optimizer has one.

    Raises:
        UsageError: names the key.
    """
    trainer = stage.trainer
    if trainer is None or stage.optimizer is not None or "trainer" not in stage.recipe.requires:
        return
    if isinstance(trainer.component, TrainerComponent) and trainer.component.optimizers:
        raise UsageError(
            f"training.optimizer: trainer {trainer.name!r} (stage {stage.name!r}) needs one"
        )


RESERVED = frozenset({"trainer", "generator", "reference", "rewards", "replay_buffer"})
"""Services of a stage that are not a recipe's own."""


def check_services(stage: StageConfig) -> None:
    """The recipe's own services, and the reference, can be built from what the config has.

    Raises:
        PluginError: the recipe declares what cannot be.
        UsageError: names the key, and what is allowed.
    """
    models = ", ".join(stage.models) or "none"
    if stage.reference_model and stage.reference_model not in stage.models:
        raise UsageError(
            f"reference.model: models: has no {stage.reference_model!r} (it has: {models})"
        )
    declared = stage.services()
    for name, service in declared.items():
        who = f"{title(stage.recipe)}: service {name!r}"
        if name in RESERVED or name in stage.sections or not SERVICE_NAME.fullmatch(name):
            taken = ", ".join(sorted({*RESERVED, *stage.sections}))
            raise PluginError(f"{who}: a name is lower-case words joined by _, and none of {taken}")
        if bool(service.section) == (service.selection is not None):
            raise PluginError(f"{who}: give either a section or a selection")
        selection = stage.service_selection(service)
        if selection is None:
            raise UsageError(f"{service.section}: {who} (stage {stage.name!r}) needs this section")
        if service.model and service.model not in stage.models:
            raise UsageError(
                f"models: {who} (stage {stage.name!r}) needs a model {service.model!r} (there is: "
                f"{models})"
            )
        if unknown := set(service.training) - set(type(stage.training).model_fields):
            raise PluginError(f"{who}: training has no {', '.join(sorted(unknown))}")
        trainers = {"trainer", *(n for n, each in declared.items() if _trains(stage, each))}
        if service.weights_from and service.weights_from not in trainers:
            raise PluginError(
                f"{who}: takes weights from {service.weights_from!r}, which is no trainer of the "
                f"stage (there is: {', '.join(sorted(trainers))})"
            )
        placement = stage.service_placement(service)
        if service.checkpoint and placement.replicas > 1:
            raise UsageError(f"{who}: {placement.replicas} replicas have no state to keep; use one")
        context = replace(
            stage.early_context(),
            training=stage.training.model_copy(update=dict(service.training)),
            loss=service.loss,
            world_size=placement.procs,
        )
        if selection.family == "trainer" and service.loss is not None:
            check_outputs(selection, service.loss, who)
        selection.check(context)
    _check_takes_weights(stage, declared)


def _check_takes_weights(stage: StageConfig, declared: Mapping[str, RecipeService]) -> None:
    """Generators that are sent the trained weights take them.

    Where a service of the recipe's own is built from section ``generator``, the recipe may need
    that section for this service alone.

    Raises:
        UsageError: one takes none.
    """
    own = any(service.section == "generator" for service in declared.values())
    needs = "generator" in stage.recipe.requires and not own
    who = f"recipe {stage.recipe.name!r}"
    asks = {
        "the held-out evaluation": stage.generator if stage.evaluates() else None,
        who: stage.generator if needs else None,
    }
    for name, service in declared.items():
        if service.weights_from:
            asks[f"service {name!r} of {who}"] = stage.service_selection(service)
    for asking, generator in asks.items():
        if generator is not None and not generator.takes_weights:
            raise UsageError(
                f"generator.use: generator {generator.name!r} takes no weights from a trainer, and "
                f"{asking} (stage {stage.name!r}) samples from the weights that are trained"
            )


def _trains(stage: StageConfig, service: RecipeService) -> bool:
    selection = stage.service_selection(service)
    return selection is not None and selection.family == "trainer"


def check_runtime(stage: StageConfig, runtime: Selection[Runtime]) -> None:
    """Let the runtime refuse a stage's services that it cannot place.

    Raises:
        UsageError: names the key, and what is allowed.
    """
    runtime.check(replace(stage.early_context(), services=stage.placements()))


def usable_loss(stage: StageConfig) -> UsageError | None:
    """Why the stage's recipe cannot use the stage's loss, or None if it can."""
    assert stage.loss is not None
    try:
        check_loss(stage)
    except UsageError as error:
        return error
    return None


def check_requirements(stage: StageConfig) -> None:
    """Everything the recipe uses is there.

    Raises:
        UsageError: names the section that is missing.
        PluginError: the recipe requires what is not a section.
    """
    check_sections(stage.recipe, stage.sections)
    if "environment" in stage.rewards:
        raise UsageError(
            "rewards.environment: what the environment itself gives has this name; choose another"
        )
    for section in sorted(stage.recipe.requires):
        added = stage.sections.get(section)
        if section == "rewards" and stage.scores():
            continue
        if not (getattr(stage, section) if added is None else added.selection):
            raise UsageError(
                f"{section}: recipe {stage.recipe.name!r} (stage {stage.name!r}) needs this section"
            )
    for section in ("environment", "generator", "trainer") if stage.evaluates() else ():
        if not getattr(stage, section):
            raise UsageError(
                f"{section}: evaluation with eval_dataset (stage {stage.name!r}) needs this section"
            )


def check_reference(stage: StageConfig) -> None:
    """A reference of its own is asked for something.

    Raises:
        UsageError: the loss needs no reference logprobs, and the recipe no reference.
    """
    loss = stage.loss
    if "reference" in stage.recipe.requires:
        return
    if stage.reference is None or (loss is not None and "reference_logprobs" in loss.needs):
        return
    who = f"loss {loss.name!r}" if loss is not None else "a stage without a loss"
    raise UsageError(
        f"reference: {who} needs no reference logprobs (stage {stage.name!r}), so nothing would "
        "ask this model; turn the loss's KL term on or take the section out (for one stage of "
        "several write stages.NAME.reference)"
    )


def check_loss(stage: StageConfig) -> None:
    """The recipe gives the loss what it needs.

    Raises:
        UsageError: names what is needed and what is given.
    """
    if stage.loss is None:
        return
    provided = stage.recipe.provides
    if missing := field_needs(stage.loss.needs) - provided:
        given = ", ".join(sorted({*provided, "entropy"}))
        raise UsageError(
            f"loss.use: loss {stage.loss.name!r} needs {', '.join(sorted(missing))}, which recipe "
            f"{stage.recipe.name!r} (stage {stage.name!r}) does not give (it gives: {given}); "
            "for one stage of several write stages.NAME.loss.use=..."
        )


def check_outputs(trainer: Selection[Trainer], loss: Selection[Loss], where: str) -> None:
    """The trainer gives the outputs of the policy that the loss asks for.

    Args:
        trainer: with its settings.
        loss: that it trains with.
        where: of the config, for the message.

    Raises:
        UsageError: names what is needed and what is given.
        PluginError: the loss asks in a way that cannot be understood.
    """
    if missing := loss.outputs.names - trainer.gives:
        raise UsageError(
            f"loss.use: loss {loss.name!r} needs {', '.join(sorted(missing))} of the policy, which "
            f"trainer {trainer.name!r} ({where}) does not give (it gives: "
            f"{', '.join(sorted(trainer.gives))})"
        )


def check_sampler(stage: StageConfig) -> None:
    """The generator samples from the distribution that a loss with importance ratios assumes.

    Penalties, truncation and constraints make another distribution of the model's. The ratio of the
    trained policy to it is far from 1 before anything is learned, and biased where tokens are cut
    off: they would have to be sampled for the weights to average to 1.

    Raises:
        UsageError: names the keys.
    """
    loss = stage.loss
    if loss is None or "sampler_logprobs" not in loss.needs or stage.generator is None:
        return
    keys = stage.generator.alters_sampling
    if keys:
        raise UsageError(
            f"{', '.join(keys)}: not with loss {loss.name!r} (stage {stage.name!r}), which "
            "weights each token by the trained policy's probability over the sampler's: the "
            "sampler would draw from another distribution than the policy's, and the ratios would "
            "be wrong"
        )
