"""The services of a stage: started when they are first asked for, closed with the stage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forge_core.contracts.context import Placement
from forge_core.contracts.errors import DataError, UsageError
from forge_core.contracts.seeding import derive_seed
from forge_core.contracts.services import RecipeService, ServiceOptions
from forge_core.contracts.types import Episode, TrainSequence
from forge_core.replay.component import replay_buffer
from forge_core.replay.saved import from_json, to_json
from forge_core.run.addresses import Addresses
from forge_core.run.checkpoint import REPLAY_BUFFER, SERVICES, RunState
from forge_core.run.inputs import Inputs, selected
from forge_core.runtimes.local import LocalRuntime
from forge_core.services.service import Service

if TYPE_CHECKING:
    from forge_core.contracts.arrays import FloatArray
    from forge_core.contracts.config import StageConfig
    from forge_core.contracts.context import BuildContext
    from forge_core.contracts.protocols import Runtime
    from forge_core.contracts.selection import Selection
    from forge_core.rewards.pool import RewardPool
    from forge_core.run.session import RunSession


_PURE = frozenset({"logprobs", "publish", "hold_reference", "save", "load"})
"""Methods of trainers that leave weights and optimizer as they are."""


def channel_of(stage: str, publisher: str) -> str:
    """Where a trainer and the generators that take weights from it meet.

    Args:
        stage: channel of the stage's own trainer.
        publisher: name of the trainer.
    """
    return stage if publisher in ("", "trainer") else f"{stage}-{publisher}"


class _Closable(Protocol):
    async def close(self) -> None: ...


class Parts:
    """Starts services and closes them.

    Args:
        session: the run that the stage belongs to.
        config: of the stage.
        context: what components are built with.
        inputs: the stage's data and environment.
        restored: where to go on, when the stage was begun by an earlier process.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        context: BuildContext,
        inputs: Inputs,
        restored: RunState | None,
    ) -> None:
        self._session = session
        self._config = config
        self._context = context
        self._inputs = inputs
        self._restored = restored
        self.own = config.services()
        """Services that the recipe has of its own, by name."""
        self.running: dict[str, Service] = {}
        """Those that were started, by name."""
        self._rewards: RewardPool | None = None
        self._addresses = Addresses(session.folder.addresses, session.events.event)

    async def trainer(self) -> Service:
        """The trainer, with the stage's weights or, after a resume, the checkpoint's.

        The reference is held first: it is what the stage began with, also after a resume.
        """
        if "trainer" in self.running:
            return self.running["trainer"]
        if self._config.trainer is None:
            raise UsageError("trainer.use: no trainer is installed")
        trainer = await self._start(
            "trainer",
            self._config.trainer,
            self._context,
            self._config.trainer_placement,
            ServiceOptions(retry=False),
        )
        if self._config.loss is not None and "reference_logprobs" in self._config.loss.needs:
            if self._config.reference is None:
                await trainer.hold_reference.route()
            else:
                await self._reference()
        if (checkpoint := self._checkpoint()) is not None:
            for name in self.own:  # what is built draws random numbers, and must not do so later
                await self.service(name)
            await trainer.load.route(checkpoint)
            assert self._restored is not None
            algorithm, internal, gauss = self._restored.python_rng
            random.setstate((algorithm, tuple(internal), gauss))
        return trainer

    def _checkpoint(self) -> Path | None:
        """Where an earlier process has left the stage, proved to be whole."""
        if self._restored is None or self._restored.stage_step == 0:
            return None
        return self._session.checkpoints.verify(self._restored.step)

    async def service(self, name: str) -> Service:
        """A service of the recipe's own, with the checkpoint's state after a resume.

        Raises:
            DataError: the checkpoint has no state of it.
        """
        if name in self.running:
            return self.running[name]
        declared, context = self.own[name], self.context_of(name)
        selection = self._config.service_selection(declared)
        assert selection is not None  # checked before the start
        service = await self._start(
            name,
            selection,
            context,
            self._config.service_placement(declared),
            declared.options or self._options_of(declared, selection.family),
        )
        if declared.loss is not None and "reference_logprobs" in declared.loss.needs:
            await service.hold_reference.route()
        if declared.checkpoint and (checkpoint := self._checkpoint()) is not None:
            saved = checkpoint / SERVICES / name
            if not saved.is_dir():
                raise DataError(
                    f"{checkpoint}: has no state of service {name!r}, which recipe "
                    f"{self._config.recipe.name!r} keeps in checkpoints; it was written by another "
                    "version of the recipe, or with other settings"
                )
            await service.load.route(saved)
        return service

    def _options_of(self, declared: RecipeService, family: str) -> ServiceOptions:
        if declared.section == "generator":
            return self._config.generator_options
        if declared.section in self._config.sections:
            return self._config.sections[declared.section].options
        one_call = 1 if family == "trainer" else ServiceOptions.concurrency
        # What it has learned cannot be made again where the process is gone.
        return ServiceOptions(retry=not declared.checkpoint, concurrency=one_call)

    def context_of(self, name: str) -> BuildContext:
        """What a service of the recipe's own, or the stage's trainer, is built with."""
        if name not in self.own:
            return self._context
        declared = self.own[name]
        publisher = declared.weights_from or (name if name in self.publishers() else "")
        training = self._context.training.model_copy(update=dict(declared.training))
        return replace(
            self._context,
            model=self._session.model(declared.model, self._context.model),
            training=training,
            seed=derive_seed(self._context.seed, "service", name),
            loss=declared.loss,
            transport=self._config.transport if publisher else None,
            channel=channel_of(self._context.channel, publisher),
        )

    def publishers(self) -> list[str]:
        """The trainers that generators take weights from: the stage's, then those of its recipe."""
        named = (declared.weights_from for declared in self.own.values() if declared.weights_from)
        return list(dict.fromkeys(["trainer", *named]))

    async def publisher(self, name: str) -> Service:
        """One of the trainers that generators take weights from."""
        return await (self.trainer() if name == "trainer" else self.service(name))

    async def generators_of(self, publisher: str) -> list[Service]:
        """The generators that take weights from a trainer, with whatever they have."""
        main = [await self.generator()] if publisher == "trainer" else []
        others = [name for name, each in self.own.items() if each.weights_from == publisher]
        return [*main, *[await self.service(name) for name in others]]

    async def generator(self) -> Service:
        """The generator service, with the weights it has; publishing gives it the trainer's."""
        if "generator" in self.running:
            return self.running["generator"]
        if self._config.generator is None:
            raise UsageError("generator.use: no generator is installed")
        return await self._start(
            "generator",
            self._config.generator,
            self._context,
            self._config.generator_placement,
            self._config.generator_options,
        )

    async def open_addresses(self) -> None:
        """Let programs outside the run reach the generators, where those serve."""
        generator = self._config.generator
        if generator is not None and generator.serves:
            await self._addresses.open(self.running["generator"])

    async def _reference(self) -> Service:
        """The service that answers with the weights the stage began with, or with those of the
        model that ``reference.model`` names, where the config has one.

        It is built without a loss, so that it never holds gradients or optimizer state.
        """
        if "reference" in self.running:
            return self.running["reference"]
        assert self._config.reference is not None
        return await self._start(
            "reference",
            self._config.reference,
            replace(
                self._context,
                model=self._session.model(self._config.reference_model, self._context.model),
                loss=None,
                transport=None,
            ),
            self._config.reference_placement,
            ServiceOptions(concurrency=1),  # a trainer takes one call at a time
        )

    async def reference_logprobs(
        self, sequences: Sequence[TrainSequence], temperature: float
    ) -> list[FloatArray]:
        """From the trainer's frozen copy, or shared evenly by the replicas of the reference."""
        if self._config.reference is None:
            trainer = await self.trainer()
            held: list[FloatArray] = await trainer.logprobs.route(
                sequences, reference=True, temperature=temperature
            )
            return held
        reference = await self._reference()
        replicas = self._config.reference_placement.replicas
        bounds = [len(sequences) * part // replicas for part in range(replicas + 1)]
        parts = [sequences[begin:end] for begin, end in pairwise(bounds) if begin < end]
        rows = await asyncio.gather(
            *(reference.logprobs.route(part, temperature=temperature) for part in parts)
        )
        return [row for part in rows for row in part]

    async def section(self, section: str) -> Service:
        """The replicas of a placed section that a plugin has added."""
        if section in self.running:
            return self.running[section]
        added = self._config.sections[section]
        return await self._start(
            section,
            selected(self._config, section),
            replace(self._context, loss=None, transport=None),
            added.placement,
            added.options,
        )

    async def replay_buffer(self, max_staleness: int) -> Service:
        """In this process unless the config gives it one of its own. A replica that died is
        replaced by an empty one."""
        if "replay_buffer" in self.running:
            return self.running["replay_buffer"]
        placed = "replay_buffer" in self._config.placements()
        service = await self._start(
            "replay_buffer",
            replay_buffer(max_staleness),
            replace(self._context, loss=None, transport=None),
            self._config.replay_buffer_placement,
            runtime=None if placed else LocalRuntime(),
        )
        if self._restored is not None:
            saved = self._session.checkpoints.path(self._restored.step) / REPLAY_BUFFER
            if saved.is_file():
                await self._restore_replay_buffer(service, saved)
        return service

    async def _restore_replay_buffer(self, service: Service, saved: Path) -> None:
        groups, gone = from_json(saved.read_text(), self._inputs.task_at)
        if gone:
            self._session.events.event(
                "warning",
                f"the replay buffer of {saved.parent} has groups of {len(gone)} tasks that the "
                f"dataset does not have where it had them ({', '.join(gone[:3])}, ...): left out",
            )
        await service.load.route(groups)

    async def _start(
        self,
        name: str,
        selection: Selection[Any],
        context: BuildContext,
        placement: Placement,
        options: ServiceOptions | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Service:
        service = self.running[name] = await Service.start(
            runtime or self._session.runtime,
            selection,
            context,
            name=name,
            placement=placement,
            options=options,
            watchdog=self._session.watchdog,
            on_event=self._session.events.event,
        )
        return service

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Judge episodes with the config's rewards."""
        if self._rewards is None:
            from forge_core.rewards.confinement import Confinement
            from forge_core.rewards.pool import RewardPool

            placed = "rewards" in self._config.placements()
            self._rewards = RewardPool(
                self._config.rewards,
                self._context,
                runtime=self._session.runtime if placed else None,
                placement=self._config.reward_placement,
                log=self._session.folder.rewards_log,
                environment_weight=self._config.environment_keys.weight,
                confinement=Confinement.of(self._config.reward_workers),
                on_event=self._session.events.event,
                watchdog=self._session.watchdog,
            )
        if self._config.environment is not None:
            self._inputs.environment.check(episodes)
        await self._rewards.score(
            [episode for episode in episodes if not episode.environment_failure]
        )

    def check_worked(self) -> None:
        """
        Raises:
            RunFailed: a part of the reward, or the environment, failed on everything it was given.
        """
        if self._rewards is not None:
            self._rewards.check_judged()
            if self._config.environment is not None:
                self._inputs.environment.check_worked()

    async def save(self, folder: Path) -> None:
        """Write into a checkpoint what its services hold.

        Raises:
            WeightsNotFinite: a weight is not finite.
        """
        trainer = await self.trainer()
        await trainer.save.route(folder)
        for name, declared in self.own.items():
            if declared.checkpoint:
                place = folder / SERVICES / name
                place.mkdir(parents=True)
                await (await self.service(name)).save.route(place)
        if "replay_buffer" in self.running:
            groups = await self.running["replay_buffer"].state.route()
            (folder / REPLAY_BUFFER).write_text(to_json(groups))

    def learned(self) -> int:
        """Calls so far that may have changed what checkpoints keep."""
        total = self.running["trainer"].answered["train_step"] if "trainer" in self.running else 0
        for name in self._learning():
            answered = self.running[name].answered
            total += sum(count for method, count in answered.items() if method not in _PURE)
        return total

    def is_learning(self) -> bool:
        """Whether one of those services is at work."""
        names = [*self._learning(), *(["trainer"] if "trainer" in self.running else [])]
        return any(self.running[name].metrics()["in_flight"] for name in names)

    def _learning(self) -> list[str]:
        return [name for name, own in self.own.items() if own.checkpoint and name in self.running]

    def laps(self) -> dict[str, float]:
        """What the services whose time is recorded did since the last call."""
        untimed = ("trainer", "replay_buffer")  # steps time the first; the other does no work
        timed = [service for name, service in self.running.items() if name not in untimed]
        return {
            f"{service.name}_{name}": value
            for service in timed
            for name, value in service.lap().items()
        }

    async def close(self) -> None:
        """Give everything back, whatever state it is in; the first failure is raised at the end."""
        errors: list[Exception] = []
        for part in self._closing():
            try:
                await part.close()
            except Exception as error:  # the others must still be closed
                errors.append(error)
        self._addresses.close()
        if errors:
            raise errors[0]

    def _closing(self) -> Iterator[_Closable]:
        """In order: those that ask others come before them."""
        first = ("generator", "trainer", "reference")
        yield from (self.running[name] for name in first if name in self.running)
        if self._rewards is not None:
            yield self._rewards
        yield from (service for name, service in self.running.items() if name not in first)
