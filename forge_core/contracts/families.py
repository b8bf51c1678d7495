"""A component type for each family, with the fields that mean something for it.

The functions among them are module-level and import nothing heavy: they are called before anything
starts, by ``forge run``, ``forge run --dry-run`` and partly by ``forge plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from forge_core.contracts.component import Component
from forge_core.contracts.protocols import (
    AdvantageEstimator,
    AnyReward,
    Dataset,
    Environment,
    Generator,
    Loss,
    OptimizerFactory,
    Recipe,
    Runtime,
    Schedule,
    Tracker,
    Trainer,
    Transport,
)

if TYPE_CHECKING:
    from forge_core.contracts.context import BuildContext, Placement
    from forge_core.contracts.memory import Memory, Workload
    from forge_core.contracts.types import Task

Reach = Literal["process", "host", "cluster"]
"""How far apart the ends of a transport may be: in one process, on one host, on several."""

REACHES: Sequence[Reach] = get_args(Reach)
"""The narrowest first."""

CheckTasks = Callable[[Any, "BuildContext", "Sequence[Task]"], None]
"""``(settings, context, tasks)`` raises ``DataError``, with the task's id, for the first task that
the component cannot work with. Called before anything starts with at most the first 1,000 tasks of
each dataset that the component will get."""

Names = Set[str] | Callable[[Any], Set[str]]
"""Names, or ``(settings)`` that returns them."""

Cautions = Callable[[Any, "BuildContext"], "Sequence[str]"]
"""``(settings, context)`` returns one line for each thing that works but is unlikely to be what a
person wants: ``forge run`` (``--dry-run`` too) and ``forge plan`` show them as warnings. The
context is that of ``check``."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a trainer or generator has its weights, as its settings say.

    Args:
        cuda: on CUDA devices of the host.
        own_process: in a process that the component starts itself, such as an engine's. ``build``
            then waits for that long, and makes no use of the event loop: runtime ``local`` calls it
            in a thread.
        isolate: the default of the kernel's key ``isolate`` for it.
        cuda_key: the setting by which a person insists on CUDA, such as ``device``; empty: the
            component takes what there is.
        shared_gpu: settings that it has by default where trainer and generator compute on one GPU,
            for one that would otherwise take nearly all of its memory.
    """

    cuda: bool = False
    own_process: bool = False
    isolate: bool = False
    cuda_key: str = ""
    shared_gpu: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenLimit:
    """Most tokens of a sequence, prompt and completion together, for ``forge plan``.

    Args:
        tokens: None: not bounded.
        key: the config key that bounds them, such as ``recipe.max_length``.
    """

    tokens: int | None = None
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class RecipeComponent(Component[Recipe]):
    """A recipe.

    Args:
        requires: sections that it uses (``dataset``, ``rewards``, ...); keys of others are warned
            of as doing nothing. With ``generator`` it samples what it trains on.
        provides: fields that its sequences carry for the loss (``advantages``, ...).
        defaults: what it presets in other sections, under everything that a person writes.
        check_tasks: see ``CheckTasks``.
        max_tokens: ``(settings)`` says what bounds a sequence; None: not known.
        max_staleness: ``(settings)`` says the most optimizer steps between the weights that sample
            a token and those that it trains; None: not known.
    """

    requires: Names = frozenset()
    provides: Names = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check_tasks: CheckTasks | None = None
    max_tokens: Callable[[Any], TokenLimit] | None = None
    max_staleness: Callable[[Any], int | None] | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratorComponent(Component[Generator]):
    """A generator.

    Args:
        cautions: see ``Cautions``.
        location: ``(settings)`` says where its weights are; None: in host memory of the replica.
        max_tokens: ``(settings)`` says what bounds a sequence; None: not known.
        alters_sampling: ``(settings)`` names those of its keys, as people write them
            (``generator.sampling.min_p``), by which it samples from another distribution than the
            model's at ``sampling.temperature``. They are refused beside a loss that compares with
            the sampler's logprobs.
        serves: whether it is a ``forge_core.ServingGenerator``.
        takes_weights: False if ``update_weights`` always raises, as where the weights are those of
            a server elsewhere. It is then refused, before anything starts, where a run would send
            it the weights that it trains.
    """

    cautions: Cautions | None = None
    location: Callable[[Any], Location] | None = None
    max_tokens: Callable[[Any], TokenLimit] | None = None
    alters_sampling: Callable[[Any], Sequence[str]] | None = None
    serves: bool = False
    takes_weights: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainerComponent(Component[Trainer]):
    """A trainer.

    Args:
        cautions: see ``Cautions``.
        location: ``(settings)`` says where its weights are; None: in host memory of the replica.
        memory: ``(settings, context, workload)`` says what one rank holds, for ``forge plan``.
        gives: what losses may ask for of ``top_logprobs``, ``log_softmax``, ``hidden_states`` and
            ``values``; every trainer gives ``entropy``.
        optimizers: it trains with the optimizer of ``context.optimizer``; else a config that
            chooses one is refused.
        schedules: likewise the learning-rate schedule of ``context.schedule``.
    """

    cautions: Cautions | None = None
    location: Callable[[Any], Location] | None = None
    gives: Names = frozenset()
    memory: Callable[[Any, BuildContext, Workload], Memory] | None = None
    optimizers: bool = False
    schedules: bool = False


@dataclass(frozen=True, kw_only=True)
class LossComponent(Component[Loss]):
    """A loss.

    Args:
        needs: names of the fields that it reads, which the recipe has to give; and of the outputs
            of the policy that it reads beside logprobs, each of which is computed only if it is
            named: ``entropy``, ``top_logprobs:K`` (K a number), ``log_softmax``, ``hidden_states``,
            ``values``. See ``ModelOutputs``.
    """

    needs: Names = frozenset()


@dataclass(frozen=True, kw_only=True)
class OptimizerComponent(Component[OptimizerFactory]):
    """An optimizer.

    Args:
        sharded: it can be given a shard of each weight (``DTensor``), because it changes every
            value from that value's own gradient and state alone. Else trainers that
            shard weights refuse it.
        state_values: numbers that it keeps for each weight, of the weights' type, or ``(settings)``
            that returns it (2 for two moments), for ``forge plan``; None: not known.
    """

    sharded: bool = False
    state_values: float | Callable[[Any], float] | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleComponent(Component[Schedule]):
    """A learning-rate schedule.

    Args:
        ends: its course depends on the number of steps: one of them in a stage counts, and the
            trainer has to know how many there are.
    """

    ends: bool = True


@dataclass(frozen=True, kw_only=True)
class AdvantageComponent(Component[AdvantageEstimator]):
    """An advantage estimator.

    Args:
        scale: what a recipe divides what it returns by unless the config says otherwise: the
            standard deviation of the group's rewards (``std``), or nothing.
    """

    scale: Literal["std", "none"] = "none"


@dataclass(frozen=True, kw_only=True)
class TransportComponent(Component[Transport]):
    """A transport.

    Args:
        reach: how far apart its ends may be.
        cuda_only: all ends must be on CUDA devices.
        fabric: what has to connect the processes of its ends, where they are several: it then
            works on the runtimes that say they have it. Empty: nothing special.
    """

    reach: Reach
    cuda_only: bool = False
    fabric: str = ""


@dataclass(frozen=True, kw_only=True)
class RuntimeComponent(Component[Runtime]):
    """A runtime.

    Args:
        in_process: replicas live in the controller's process, unless their placement says
            otherwise (``Placement.own_processes``).
        hosts: ``(settings, service, placement)`` says on which hosts a service's replicas live:
            name -> what it has in common with others on the same machine, such as its address.
            None: on this machine alone. Raises ``UsageError`` for hosts that are not there.
        fabric: what connects its processes, for transports that need it.
    """

    in_process: bool = False
    hosts: Callable[[Any, str, Placement], Mapping[str, str]] | None = None
    fabric: str = ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentComponent(Component[Environment]):
    """An environment.

    Args:
        check_tasks: see ``CheckTasks``.
        gives_rewards: its responses have rewards, so that a config needs no ``rewards``.
    """

    check_tasks: CheckTasks | None = None
    gives_rewards: bool = False


@dataclass(frozen=True, kw_only=True)
class RewardComponent(Component[AnyReward]):
    """A reward.

    Args:
        check_tasks: see ``CheckTasks``.
    """

    check_tasks: CheckTasks | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetComponent(Component[Dataset]):
    """A dataset."""


@dataclass(frozen=True, kw_only=True)
class TrackerComponent(Component[Tracker]):
    """A tracker."""


COMPONENT_TYPES: Mapping[str, type[Component[Any]]] = {
    "recipe": RecipeComponent,
    "generator": GeneratorComponent,
    "trainer": TrainerComponent,
    "loss": LossComponent,
    "optimizer": OptimizerComponent,
    "schedule": ScheduleComponent,
    "advantage": AdvantageComponent,
    "transport": TransportComponent,
    "runtime": RuntimeComponent,
    "environment": EnvironmentComponent,
    "reward": RewardComponent,
    "dataset": DatasetComponent,
    "tracker": TrackerComponent,
}
"""Family -> the type of its components. Families that plugins add have ``Component``."""
