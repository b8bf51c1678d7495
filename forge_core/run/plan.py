"""How long a stage is, and whether its parts fit together: known before anything starts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge_core.component import BuildContext, Placement
from forge_core.contracts import check_sections
from forge_core.errors import UsageError
from forge_core.seeding import derive_seed

if TYPE_CHECKING:
    from forge_core.component import Selection
    from forge_core.config.resolve import StageConfig
    from forge_core.config.sections import TrainingSection
    from forge_core.protocols import Loss, Recipe, Runtime


def steps_for(training: TrainingSection, tasks_per_step: int, dataset_length: int) -> int:
    """Optimizer steps of a stage that takes ``tasks_per_step`` tasks in each.

    Raises:
        UsageError: the config says neither ``steps`` nor ``num_epochs``.
    """
    if training.steps is not None:
        return training.steps
    if training.num_epochs is None:
        raise UsageError("training.steps: give steps or num_epochs, so that the run has a target")
    return max(1, math.ceil(training.num_epochs * dataset_length / tasks_per_step))


def early_context(stage: StageConfig) -> BuildContext:
    """What is known before the stage's model is: enough for recipes, losses and datasets."""
    return BuildContext(
        model=stage.model,
        training=stage.training,
        distributed=stage.distributed,
        seed=derive_seed(stage.training.seed, "stage", stage.name),
    )


def placements(stage: StageConfig) -> dict[str, Placement]:
    """Service -> where its replicas go, for each that the stage has on the run's runtime.

    Rewards and the replay buffer are there only if their sections say so; else they live in the
    controller's process, whatever the runtime.
    """
    judges, buffer = stage.reward_placement, stage.replay_buffer_placement
    judged = bool(stage.rewards) and (judges.own_processes or judges.replicas > 1)
    there = {
        "trainer": (stage.trainer_placement, stage.trainer is not None),
        "generator": (stage.generator_placement, stage.generator is not None),
        "reference": (stage.reference_placement, stage.reference is not None),
        "rewards": (judges, judged),
        "replay_buffer": (buffer, buffer.own_processes),
    }
    return {service: placement for service, (placement, used) in there.items() if used}


def evaluates(stage: StageConfig) -> bool:
    """Whether the stage's policy is scored on held-out tasks."""
    return stage.eval_dataset is not None and bool(stage.rewards)


def samples(stage: StageConfig) -> bool:
    """Whether the stage uses its generator, to train on what it samples or to evaluate."""
    requires = stage.recipe.build(early_context(stage)).requires
    return "generator" in requires or evaluates(stage)


def check_components(stage: StageConfig) -> None:
    """Let each component refuse what it cannot do with its settings and number of ranks.

    Raises:
        UsageError: names the key, and what is allowed.
    """
    context = replace(early_context(stage), loss=stage.loss, transport=stage.transport)
    chosen: list[tuple[Selection[Any] | None, int]] = [
        (stage.trainer, stage.trainer_placement.procs),
        (stage.generator, stage.generator_placement.procs),
        *((selection, 1) for selection in (stage.transport, stage.recipe, stage.loss)),
        (stage.environment if samples(stage) else None, 1),
        *((selection, 1) for selection in (stage.dataset, stage.eval_dataset)),
        *((part.selection, 1) for part in stage.rewards.values()),
    ]
    for selection, procs in chosen:
        if selection is not None:
            selection.check(replace(context, world_size=procs))
    if stage.reference is not None:
        procs = stage.reference_placement.procs
        try:
            stage.reference.check(replace(early_context(stage), world_size=procs))
        except UsageError as error:  # it speaks of the trainer that it is
            key = str(error)
            own = key.startswith("trainer.")
            key = f"reference.{key.removeprefix('trainer.')}" if own else f"reference: {key}"
            raise UsageError(key) from error


def check_runtime(stage: StageConfig, runtime: Selection[Runtime]) -> None:
    """Let the runtime refuse a stage's services that it cannot place.

    Raises:
        UsageError: names the key, and what is allowed.
    """
    runtime.check(replace(early_context(stage), services=placements(stage)))


def check_transport(stage: StageConfig, runtime: str) -> None:
    """Both ends of the transport can reach each other.

    Raises:
        UsageError: the transport works within one process, and an end lives in another.
    """
    transport = stage.transport
    if transport is None or not transport.component.one_process:
        return
    ends = (("generator", stage.generator_placement), ("trainer", stage.trainer_placement))
    away = [
        f"{section}.{key}"
        for section, placement in ends
        for key, moves in (
            ("procs", placement.procs > 1),
            ("isolate", placement.isolate),
            ("with_gpus", placement.with_gpus),
            ("env", bool(placement.env)),
        )
        if moves
    ]
    if runtime != "local":
        away = ["runtime.use", *away]
    if away:
        raise UsageError(
            f"transport.use: transport {transport.name!r} works within one process, and "
            f"{' and '.join(away)} put an end of it into another (stage {stage.name!r}); use "
            "--transport shm on one host"
        )


def usable_loss(stage: StageConfig) -> UsageError | None:
    """Why the stage's recipe cannot use the stage's loss, or None if it can."""
    assert stage.loss is not None
    context = early_context(stage)
    try:
        check_loss(stage, stage.recipe.build(context), stage.loss.build(context))
    except UsageError as error:
        return error
    return None


def check_requirements(stage: StageConfig, recipe: Recipe) -> None:
    """Everything the recipe uses is there.

    Raises:
        UsageError: names the section that is missing.
        PluginError: the recipe requires what is not a section.
    """
    check_sections(stage.recipe, recipe.requires)
    for section in sorted(recipe.requires):
        if not getattr(stage, section):
            raise UsageError(
                f"{section}: recipe {stage.recipe.name!r} (stage {stage.name!r}) needs this section"
            )
    for section in ("environment", "generator", "trainer") if evaluates(stage) else ():
        if not getattr(stage, section):
            raise UsageError(
                f"{section}: evaluation with eval_dataset (stage {stage.name!r}) needs this section"
            )


def check_reference(stage: StageConfig, loss: Loss | None) -> None:
    """A reference of its own is asked for something.

    Raises:
        UsageError: the loss needs no reference logprobs.
    """
    if stage.reference is None or (loss is not None and "reference_logprobs" in loss.needs):
        return
    who = f"loss {stage.loss.name!r}" if stage.loss is not None else "a stage without a loss"
    raise UsageError(
        f"reference: {who} needs no reference logprobs (stage {stage.name!r}), so nothing would "
        "ask this model; turn the loss's KL term on or take the section out (for one stage of "
        "several write stages.NAME.reference)"
    )


def check_loss(stage: StageConfig, recipe: Recipe, loss: Loss) -> None:
    """The recipe gives the loss what it needs.

    Raises:
        UsageError: names what is needed and what is given.
    """
    missing = loss.needs - recipe.provides - {"entropy"}
    if missing and stage.loss is not None:
        given = ", ".join(sorted(recipe.provides | {"entropy"}))
        raise UsageError(
            f"loss.use: loss {stage.loss.name!r} needs {', '.join(sorted(missing))}, which recipe "
            f"{stage.recipe.name!r} (stage {stage.name!r}) does not give (it gives: {given}); "
            "for one stage of several write stages.NAME.loss.use=..."
        )


def check_sampler(stage: StageConfig, loss: Loss | None) -> None:
    """The generator samples from the distribution that a loss with importance ratios assumes.

    Penalties, truncation and constraints make another distribution of the model's. The ratio of the
    trained policy to it is far from 1 before anything is learned, and biased where tokens are cut
    off: they would have to be sampled for the weights to average to 1.

    Raises:
        UsageError: names the keys.
    """
    if loss is None or "sampler_logprobs" not in loss.needs or stage.generator is None:
        return
    keys = stage.generator.alters_sampling
    if keys:
        assert stage.loss is not None
        raise UsageError(
            f"{', '.join(keys)}: not with loss {stage.loss.name!r} (stage {stage.name!r}), which "
            "weights each token by the trained policy's probability over the sampler's: the "
            "sampler would draw from another distribution than the policy's, and the ratios would "
            "be wrong"
        )
