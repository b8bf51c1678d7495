"""What a plugin contributes: a named component with typed settings and a way to build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from forge_core.contracts.blame import blaming, contained, title
from forge_core.contracts.built import check_built
from forge_core.contracts.errors import ForgeError

if TYPE_CHECKING:
    from pathlib import Path

    from forge_core.contracts.memory import Memory, Workload
    from forge_core.contracts.protocols import Loss, Transport
    from forge_core.contracts.sections import (
        DistributedSection,
        ModelSection,
        TrainingSection,
    )
    from forge_core.contracts.types import Task

PARTS = ("loss", "transport")
"""Families that a trainer or a generator builds for itself: a failure would pass for its own."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a trainer or generator has its weights, as its settings say.

    Args:
        cuda: on CUDA devices of the host.
        own_process: in a process that the component starts itself, such as an engine's. ``build``
            then waits for that long, and makes no use of the event loop: runtime ``local`` calls it
            in a thread.
        isolate: the default of the kernel's key ``isolate`` for it.
        shared_gpu: settings that it has by default where trainer and generator compute on one GPU,
            for one that would otherwise take nearly all of its memory.
    """

    cuda: bool = False
    own_process: bool = False
    isolate: bool = False
    shared_gpu: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the settings of a recipe or a generator bound, for ``forge plan``.

    Args:
        tokens: most tokens of a sequence, prompt and completion together; None: not bounded.
        key: the config key that bounds them, such as ``recipe.max_length``.
        staleness: for recipes that sample, most optimizer steps between the weights that sample a
            token and those that it trains; None: not known.
    """

    tokens: int | None = None
    key: str = ""
    staleness: int | None = None


@dataclass(frozen=True, kw_only=True)
class Component(Generic[T_co]):
    """One named implementation in a family.

    Args:
        name: what people write behind ``use:``; lower case, words joined by ``_``.
        settings: a light pydantic model (derive it from ``Settings``); the rest of the section.
        build: module-level function ``(settings, context) -> the component``. The only place where
            heavy packages are imported.
        summary: one line for ``forge plugins``.
        check: module-level function ``(settings, context)`` that raises ``UsageError`` for what
            ``build`` would refuse, before anything starts (``forge run --dry-run`` too). The
            context's ``world_size`` is the number of ranks asked for, and for a runtime
            ``services`` says where the stage's replicas go; the model may not be there yet
            (``forge_core.models.shape`` tells what is known of it). Imports nothing heavy.
        check_tasks: for recipes, environments and rewards, module-level function
            ``(settings, context, tasks)`` that raises ``DataError``, with the task's id, for the
            first task it cannot work with. It is called before anything starts with at most the
            first 1,000 tasks of each dataset that it will get. Imports nothing heavy.
        cautions: module-level function ``(settings, context)`` that returns one line for each thing
            that works but is unlikely to be what a person wants: ``forge run`` (``--dry-run`` too)
            and ``forge plan`` show them as warnings. The context is that of ``check``. For trainers
            and generators. Imports nothing heavy.
        memory: for trainers, module-level function ``(settings, context, workload)`` that
            says what one rank holds, for ``forge plan``. Imports nothing heavy.
        location: for trainers and generators, module-level function ``(settings)`` that says where
            their weights are; default: in host memory of the replica. Imports nothing heavy.
        alters_sampling: for generators, module-level function ``(settings)`` that names those of
            its keys, as people write them (``generator.sampling.min_p``), by which it samples from
            another distribution than the model's at ``sampling.temperature``. They are refused
            beside a loss that compares with the sampler's logprobs. Imports nothing heavy.
        limits: for recipes and generators, module-level function ``(settings)`` that says what
            they bound; default: nothing is known. Imports nothing heavy.
        one_process: for transports, whether all ends must live in the controller's process.
        one_host: for transports, whether all ends must live on one host.
        cuda_only: for transports, whether all ends must be on CUDA devices.
        default: selected where a config selects nothing in the family's section; of transports,
            the one with the narrowest reach that the ends are in. Trackers that say so are all on.
            Where two plugins say so of one family, a config has to select.
        serves: for generators, whether they are ``forge_core.ServingGenerator``s.
    """

    name: str
    settings: type[BaseModel]
    build: Callable[[Any, BuildContext], T_co]
    summary: str
    check: Callable[[Any, BuildContext], None] | None = None
    check_tasks: Callable[[Any, BuildContext, Sequence[Task]], None] | None = None
    cautions: Callable[[Any, BuildContext], Sequence[str]] | None = None
    memory: Callable[[Any, BuildContext, Workload], Memory] | None = None
    location: Callable[[Any], Location] | None = None
    limits: Callable[[Any], Limits] | None = None
    alters_sampling: Callable[[Any], Sequence[str]] | None = None
    one_process: bool = False
    one_host: bool = False
    cuda_only: bool = False
    default: bool = False
    serves: bool = False


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named config that a package ships.

    Args:
        name: what people write behind ``forge run``.
        path: the YAML file.
        summary: one line for ``forge presets``.
        kind: ``run`` is a whole config; ``model`` supplies defaults to every config whose
            ``model.name`` equals this name.
    """

    name: str
    path: Path
    summary: str
    kind: str = "run"


@dataclass(frozen=True, kw_only=True)
class ModelMaker:
    """A model that ``forge model NAME`` writes as a folder in Hugging Face layout.

    Args:
        name: lower case words joined by ``-`` or ``_``.
        make: function of the folder to write into, which exists and is empty. Heavy packages are
            imported here. Raises ``UsageError`` for what is missing.
        summary: one line for ``forge model``.
    """

    name: str
    make: Callable[[Path], None]
    summary: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A family of a plugin's own, with the config section that selects a component of it.

    Args:
        name: of the section and of the family; lower case words joined by ``_``, none of the
            kernel's. People write ``NAME: {use: ...}``, for the whole run or for a stage.
        hook: with which plugins contribute components, such as ``forge_judges``. It is there as
            soon as the section is, and takes no arguments.
        summary: one line for ``forge config schema``.
        placed: whether the component lives in replicas, on the run's runtime. The section then has
            the kernel's keys of a service (``replicas``, ``procs``, ``with_gpus``, ``deadline``,
            ...), and a recipe has ``await stage.service(NAME)``; else ``stage.component(NAME)``.
    """

    name: str
    hook: str
    summary: str
    placed: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand ``forge NAME``.

    Args:
        name: lower case words joined by ``-`` or ``_``; none of the kernel's own.
        target: ``module:attribute`` of a ``click.Command``; imported when the command is called.
        summary: one line for ``forge --help``.
    """

    name: str
    target: str
    summary: str


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
        """Where the component has its weights."""
        stated = self.component.location
        if stated is None:
            return Location()
        with blaming(self, "location"):
            return stated(self.settings)

    @property
    def alters_sampling(self) -> Sequence[str]:
        """Keys by which a generator samples from another distribution than the model's."""
        stated = self.component.alters_sampling
        if stated is None:
            return ()
        with blaming(self, "alters_sampling"):
            return stated(self.settings)

    @property
    def limits(self) -> Limits:
        """What the component's settings bound."""
        stated = self.component.limits
        if stated is None:
            return Limits()
        with blaming(self, "limits"):
            return stated(self.settings)

    def build(self, context: BuildContext) -> T_co:
        """Make the component. Heavy imports happen here, and nowhere else.

        Raises:
            PluginError: what was built is not what its family must be.
            Escaped: it raised ``SystemExit`` or the like.
        """
        try:
            with contained():
                built = self.component.build(self.settings, context)
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

    def cautions(self, context: BuildContext) -> Sequence[str]:
        """What is worth a warning before a start."""
        stated = self.component.cautions
        if stated is None:
            return ()
        with blaming(self, "cautions"):
            return stated(self.settings, context)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How many replicas of a component, of how many processes each, and what these are given.

    Args:
        replicas: copies of the component behind one handle.
        procs: ranks of one replica; each is a process.
        isolate: a process of its own for each replica even with one rank.
        with_gpus: one device for each rank. All ranks of a replica on one host see its devices
            (``CUDA_VISIBLE_DEVICES``); ``LOCAL_RANK`` says which is whose, as under torchrun.
        env: environment variables of each rank.
    """

    replicas: int = 1
    procs: int = 1
    isolate: bool = False
    with_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_processes(self) -> bool:
        """Whether runtime ``local`` gives the replicas processes of their own."""
        return self.isolate or self.procs > 1 or self.with_gpus or bool(self.env)


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a component may know of the run it is built for. Picklable, so that it travels.

    Args:
        model: the model section; once a run has started, ``model.path`` is a folder in Hugging Face
            layout with weights and tokenizer.
        training: the shared training section.
        distributed: the shared distributed section.
        seed: the run's seed; derive your own with ``forge_core.derive_seed``.
        channel: name shared by all components of one stage; transports meet on it.
        loss: for trainers, the loss to train with.
        transport: for trainers and generators, the way that weights travel.
        replica: index of the replica being built.
        rank: rank of this process in the replica.
        world_size: processes in the replica.
        services: where the replicas of all services of the stage go, by service; a runtime checks
            them together before it starts the first.
        logs: folder that processes of the run write their output to; None: to our stderr.
        extra: what a plugin hands to its own components.
    """

    model: ModelSection
    training: TrainingSection
    distributed: DistributedSection
    seed: int = 0
    channel: str = "default"
    loss: Selection[Loss] | None = None
    transport: Selection[Transport] | None = None
    replica: int = 0
    rank: int = 0
    world_size: int = 1
    services: Mapping[str, Placement] = field(default_factory=dict)
    logs: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
