"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import OptimizerComponent, ScheduleComponent, Settings, hookimpl
from forge_optim.memory import adam_state, rmsprop_state, sgd_state
from forge_optim.settings import (
    AdadeltaSettings,
    AdafactorSettings,
    AdagradSettings,
    AdamSettings,
    AdamWSettings,
    FloorSettings,
    InverseSqrtSettings,
    MomentsSettings,
    RmspropSettings,
    SgdSettings,
    WsdSettings,
)

ADAMW = OptimizerComponent(
    name="adamw",
    settings=AdamWSettings,
    build="forge_optim.torch_optimizers:adamw",
    sharded=True,
    state_values=adam_state,
    summary="Adam with decoupled weight decay",
    default=True,
)

OPTIMIZERS = (
    ADAMW,
    OptimizerComponent(
        name="adam",
        settings=AdamSettings,
        build="forge_optim.torch_optimizers:adam",
        sharded=True,
        state_values=adam_state,
        summary="adaptive moments",
    ),
    OptimizerComponent(
        name="sgd",
        settings=SgdSettings,
        build="forge_optim.torch_optimizers:sgd",
        sharded=True,
        state_values=sgd_state,
        summary="gradient descent, with momentum if asked for; no state without",
    ),
    OptimizerComponent(
        name="adafactor",
        settings=AdafactorSettings,
        build="forge_optim.torch_optimizers:adafactor",
        state_values=0,  # a row and a column for each matrix
        summary="second moments of rows and columns only: next to no state",
    ),
    OptimizerComponent(
        name="nadam",
        settings=MomentsSettings,
        build="forge_optim.torch_optimizers:nadam",
        sharded=True,
        state_values=2,
        summary="Adam with Nesterov's momentum",
    ),
    OptimizerComponent(
        name="radam",
        settings=MomentsSettings,
        build="forge_optim.torch_optimizers:radam",
        sharded=True,
        state_values=2,
        summary="Adam with a rectified variance in the first steps",
    ),
    OptimizerComponent(
        name="adamax",
        settings=MomentsSettings,
        build="forge_optim.torch_optimizers:adamax",
        sharded=True,
        state_values=2,
        summary="Adam with the infinity norm",
    ),
    OptimizerComponent(
        name="adagrad",
        settings=AdagradSettings,
        build="forge_optim.torch_optimizers:adagrad",
        sharded=True,
        state_values=1,
        summary="divides by the root of all squared gradients",
    ),
    OptimizerComponent(
        name="rmsprop",
        settings=RmspropSettings,
        build="forge_optim.torch_optimizers:rmsprop",
        sharded=True,
        state_values=rmsprop_state,
        summary="divides by the root mean square of recent gradients",
    ),
    OptimizerComponent(
        name="adadelta",
        settings=AdadeltaSettings,
        build="forge_optim.torch_optimizers:adadelta",
        sharded=True,
        state_values=2,
        summary="steps of the size of recent steps",
    ),
)
SCHEDULES = (
    ScheduleComponent(
        name="constant",
        settings=Settings,
        build="forge_optim.schedules:constant",
        ends=False,
        summary="the peak after warmup",
        default=True,
    ),
    ScheduleComponent(
        name="linear",
        settings=FloorSettings,
        build="forge_optim.schedules:linear",
        summary="a straight line down to the last step",
    ),
    ScheduleComponent(
        name="cosine",
        settings=FloorSettings,
        build="forge_optim.schedules:cosine",
        summary="half a cosine down to the last step",
    ),
    ScheduleComponent(
        name="wsd",
        settings=WsdSettings,
        build="forge_optim.schedules:wsd",
        summary="the peak, and a straight line down in the last part (warmup-stable-decay)",
    ),
    ScheduleComponent(
        name="inverse_sqrt",
        settings=InverseSqrtSettings,
        build="forge_optim.schedules:inverse_sqrt",
        ends=False,
        summary="down with the root of the steps; has no end",
    ),
)


@hookimpl
def forge_optimizers() -> Iterable[OptimizerComponent]:
    yield from OPTIMIZERS


@hookimpl
def forge_schedules() -> Iterable[ScheduleComponent]:
    yield from SCHEDULES
