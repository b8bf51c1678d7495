"""A component that a config chose, with its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from pydantic import BaseModel

from forge_core.contracts.blame import blaming, contained, title
from forge_core.contracts.built import check_built
from forge_core.contracts.errors import ForgeError, PluginError
from forge_core.contracts.families import (
    AdvantageComponent,
    CheckTasks,
    EnvironmentComponent,
    GeneratorComponent,
    Location,
    LossComponent,
    Names,
    OptimizerComponent,
    Reach,
    RecipeComponent,
    RewardComponent,
    RuntimeComponent,
    ScheduleComponent,
    TokenLimit,
    TrainerComponent,
    TransportComponent,
)
from forge_core.contracts.loss import OutputNeeds
from forge_core.contracts.target import call_build

if TYPE_CHECKING:
    from forge_core.contracts.component import Component
    from forge_core.contracts.context import BuildContext, Placement
    from forge_core.contracts.memory import Memory, Workload
    from forge_core.contracts.types import Task

PARTS = ("loss", "optimizer", "schedule", "transport")
"""Families that a trainer or a generator builds for itself: a failure would pass for its own."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Selection(Generic[T_co]):
    """A component chosen by a config, with its settings already parsed. Picklable.

    Args:
        family: such as ``loss``.
        component: what was chosen.
        settings: parsed with its settings class.
        plugin: distribution or plugin that it comes from; empty for the kernel's own helpers,
            which are in no config.
    """

    family: str
    component: Component[T_co]
    settings: BaseModel
    plugin: str = ""

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def location(self) -> Location:
        """Where a trainer or generator has its weights."""
        component = self.component
        if not isinstance(component, GeneratorComponent | TrainerComponent):
            return Location()
        if component.location is None:
            return Location()
        with blaming(self, "location"):
            return component.location(self.settings)

    @property
    def alters_sampling(self) -> Sequence[str]:
        """Keys by which a generator samples from another distribution than the model's."""
        component = self.component
        if not isinstance(component, GeneratorComponent) or component.alters_sampling is None:
            return ()
        with blaming(self, "alters_sampling"):
            return component.alters_sampling(self.settings)

    @property
    def serves(self) -> bool:
        """Whether a generator is a ``ServingGenerator``."""
        return isinstance(self.component, GeneratorComponent) and self.component.serves

    @property
    def takes_weights(self) -> bool:
        """Whether a generator samples from the weights that a trainer publishes."""
        return isinstance(self.component, GeneratorComponent) and self.component.takes_weights

    @property
    def checks_tasks(self) -> bool:
        """Whether the component looks at tasks before a start."""
        return self._check_tasks is not None

    @property
    def _check_tasks(self) -> CheckTasks | None:
        component = self.component
        if isinstance(component, RecipeComponent | EnvironmentComponent | RewardComponent):
            return component.check_tasks
        return None

    @property
    def tells_memory(self) -> bool:
        """Whether a trainer says what its ranks hold."""
        return isinstance(self.component, TrainerComponent) and self.component.memory is not None

    @property
    def sharded(self) -> bool:
        """Whether an optimizer can be given a shard of each weight."""
        return isinstance(self.component, OptimizerComponent) and self.component.sharded

    @property
    def state_values(self) -> float | None:
        """Numbers that an optimizer keeps for each weight; None: not known.

        Raises:
            PluginError: the component says something that is no number of at least 0.
        """
        assert isinstance(self.component, OptimizerComponent)
        stated = self.component.state_values
        with blaming(self, "state_values"):
            values = stated(self.settings) if callable(stated) else stated
        if values is None or (isinstance(values, int | float) and 0 <= values < math.inf):
            return values
        raise PluginError(
            f"{title(self)}: state_values must be a number of at least 0, a function of the "
            f"settings that returns one, or None; not {values!r}"
        )

    @property
    def ends(self) -> bool:
        """Whether the course of a schedule depends on the number of steps."""
        return isinstance(self.component, ScheduleComponent) and self.component.ends

    @property
    def scale(self) -> Literal["std", "none"]:
        """What a recipe divides the advantages of an estimator by, unless the config says.

        Raises:
            PluginError: the component says something else.
        """
        assert isinstance(self.component, AdvantageComponent)
        stated = self.component.scale
        if stated not in ("std", "none"):
            raise PluginError(f"{title(self)}: scale must be 'std' or 'none', not {stated!r}")
        return stated

    @property
    def reach(self) -> Reach:
        """How far apart the ends of a transport may be."""
        assert isinstance(self.component, TransportComponent)
        return self.component.reach

    def hosts(self, service: str, placement: Placement) -> Mapping[str, str]:
        """Hosts that a runtime places a service on, and the machine of each; empty: this one.

        Raises:
            UsageError: there are no such hosts.
        """
        assert isinstance(self.component, RuntimeComponent)
        if self.component.hosts is None:
            return {}
        with blaming(self, "hosts"):
            return self.component.hosts(self.settings, service, placement)

    @property
    def max_tokens(self) -> TokenLimit:
        """What a recipe or generator bounds a sequence by."""
        component = self.component
        if not isinstance(component, RecipeComponent | GeneratorComponent):
            return TokenLimit()
        if component.max_tokens is None:
            return TokenLimit()
        with blaming(self, "max_tokens"):
            return component.max_tokens(self.settings)

    @property
    def requires(self) -> frozenset[str]:
        """Sections that a recipe uses."""
        assert isinstance(self.component, RecipeComponent)
        return self._names("requires", self.component.requires)

    @property
    def provides(self) -> frozenset[str]:
        """Fields that a recipe's sequences carry."""
        assert isinstance(self.component, RecipeComponent)
        return self._names("provides", self.component.provides)

    @property
    def needs(self) -> frozenset[str]:
        """Fields that a loss reads, and outputs of the policy."""
        assert isinstance(self.component, LossComponent)
        return self._names("needs", self.component.needs)

    @property
    def outputs(self) -> OutputNeeds:
        """Outputs of the policy that a loss reads beside logprobs.

        Raises:
            PluginError: they are named wrongly.
        """
        try:
            return OutputNeeds.of(self.needs)
        except ValueError as error:
            raise PluginError(f"{title(self)}: needs {error}") from None

    @property
    def gives(self) -> frozenset[str]:
        """Outputs of the policy that a trainer gives to losses."""
        assert isinstance(self.component, TrainerComponent)
        return self._names("gives", self.component.gives) | {"entropy"}

    def _names(self, what: str, stated: Names) -> frozenset[str]:
        """Raises:
        PluginError: the component returned no set of names.
        """
        with blaming(self, what):
            names = stated(self.settings) if callable(stated) else stated
        if isinstance(names, Set) and all(isinstance(name, str) for name in names):
            return frozenset(names)
        raise PluginError(
            f"{title(self)}: {what} must be a set of names, such as frozenset({{'advantages'}}), "
            f"or a function of the settings that returns one; not {names!r}"
        )

    @property
    def max_staleness(self) -> int | None:
        """Optimizer steps that what a recipe trains may lie behind; None: not known."""
        component = self.component
        if not isinstance(component, RecipeComponent) or component.max_staleness is None:
            return None
        with blaming(self, "max_staleness"):
            return component.max_staleness(self.settings)

    def build(self, context: BuildContext) -> T_co:
        """Make the component. Heavy imports happen here, and nowhere else.

        Raises:
            PluginError: what was built is not what its family must be.
            Escaped: it raised ``SystemExit`` or the like.
        """
        try:
            with contained():
                build = cast("Callable[..., T_co]", self.component.build)
                built: T_co = call_build(build, self.settings, context)
        except Exception as error:
            if self.family in PARTS and not isinstance(error, ForgeError):
                error.add_note(f"in the build of {title(self)}")
            raise
        if self.plugin:
            check_built(self, built)
        return built

    def check(self, context: BuildContext) -> None:
        """Refuse before a start what ``build`` would refuse.

        Raises:
            UsageError: names the key, and what is allowed.
        """
        if self.component.check is not None:
            with blaming(self, "check"):
                self.component.check(self.settings, context)

    def check_tasks(self, context: BuildContext, tasks: Sequence[Task]) -> None:
        """Refuse tasks that the component cannot work with.

        Raises:
            DataError: names the first of them.
        """
        if (check := self._check_tasks) is not None:
            with blaming(self, "check_tasks"):
                check(self.settings, context, tasks)

    def memory(self, context: BuildContext, workload: Workload) -> Memory:
        """What one rank of a trainer holds; only where ``tells_memory``."""
        component = self.component
        assert isinstance(component, TrainerComponent)
        assert component.memory is not None
        with blaming(self, "memory"):
            return component.memory(self.settings, context, workload)

    def cautions(self, context: BuildContext) -> Sequence[str]:
        """What is worth a warning before a start."""
        component = self.component
        if not isinstance(component, GeneratorComponent | TrainerComponent):
            return ()
        if component.cautions is None:
            return ()
        with blaming(self, "cautions"):
            return component.cautions(self.settings, context)
