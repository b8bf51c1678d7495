"""The services of a stage: started when they are first asked for, closed with the stage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forge_core import Episode, Group, ServiceOptions, TrainSequence, UsageError
from forge_local.runtime import LocalRuntime
from forge_rollouts.component import replay_buffer
from forge_rollouts.rollouts import Rollouts, rollouts
from forge_rollouts.saved import from_json, to_json
from forge_run.addresses import Addresses
from forge_run.checkpoint import REPLAY_BUFFER, ROLLOUT, RunState
from forge_run.inputs import Inputs, selected
from forge_run.publishing import changes
from forge_run.recipe_services import RecipeServices
from forge_run.running import Running
from forge_services.service import Service

if TYPE_CHECKING:
    from forge_core import BuildContext, FloatArray, RecipeContext, RolloutOptions, StageConfig
    from forge_rewards.pool import RewardPool
    from forge_run.session import RunSession


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
        self.running = Running(session)
        self.own = RecipeServices(session, config, context, self.running, self._checkpoint)
        self._rewards: RewardPool | None = None
        self._rollouts: Rollouts | None = None
        self._addresses = Addresses(session.folder.addresses, session.events.event)

    async def trainer(self) -> Service:
        """The trainer, with the stage's weights or, after a resume, the checkpoint's.

        The reference is held first: it is what the stage began with, also after a resume.
        """
        if "trainer" in self.running:
            return self.running["trainer"]
        if self._config.trainer is None:
            raise UsageError("trainer.use: no trainer is installed")
        trainer = await self.running.start(
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
            # Building may draw random numbers, or seed them: not after the trainer's are restored.
            for name in self.own.declared:
                await self.own.service(name)
            if self._config.samples():
                await self.generator()
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

    async def publisher(self, name: str) -> Service:
        """One of the trainers that generators take weights from."""
        return await (self.trainer() if name == "trainer" else self.own.service(name))

    async def generators_of(self, publisher: str) -> list[Service]:
        """The generators that take weights from a trainer, with whatever they have."""
        main = [await self.generator()] if publisher == "trainer" else []
        others = [await self.own.service(name) for name in self.own.generators_of(publisher)]
        return [*main, *others]

    async def generator(self) -> Service:
        """The generator service, with the weights it has; publishing gives it the trainer's."""
        if "generator" in self.running:
            return self.running["generator"]
        if self._config.generator is None:
            raise UsageError("generator.use: no generator is installed")
        return await self.running.start(
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
        return await self.running.start(
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
        return await self.running.start(
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
        service = await self.running.start(
            "replay_buffer",
            replay_buffer(max_staleness),
            replace(self._context, loss=None, transport=None),
            self._config.replay_buffer_placement,
            runtime=None if placed else LocalRuntime(),
        )
        if self._restored is not None:
            saved = self._session.checkpoints.path(self._restored.step) / REPLAY_BUFFER
            if saved.is_file():
                await service.load.route(self._saved_groups(saved, "the replay buffer"))
        return service

    def _saved_groups(self, saved: Path, what: str) -> dict[int, Group]:
        groups, gone = from_json(saved.read_text(), self._inputs.task_at)
        if gone:
            self._session.events.event(
                "warning",
                f"{what} of {saved.parent} has groups of {len(gone)} tasks that the "
                f"dataset does not have where it had them ({', '.join(gone[:3])}, ...): left out",
            )
        return groups

    @asynccontextmanager
    async def rollouts(
        self, stage: RecipeContext, options: RolloutOptions
    ) -> AsyncIterator[Rollouts]:
        """Sampling for the recipe; the checkpoint's rollout first, if steps of it are left."""
        held: dict[int, Group] = {}
        if (checkpoint := self._checkpoint()) is not None and (checkpoint / ROLLOUT).is_file():
            held = self._saved_groups(checkpoint / ROLLOUT, "the rollout")
        async with rollouts(stage, options, held) as self._rollouts:
            yield self._rollouts

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Judge episodes with the config's rewards."""
        if self._rewards is None:
            from forge_rewards.confinement import Confinement
            from forge_rewards.pool import RewardPool

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

    async def save(self, folder: Path, done: int) -> None:
        """Write into a checkpoint what its services hold.

        Args:
            folder: of the checkpoint.
            done: steps of the stage.

        Raises:
            WeightsNotFinite: a weight is not finite.
        """
        trainer = await self.trainer()
        await trainer.save.route(folder)
        await self.own.save(folder)
        if "replay_buffer" in self.running:
            groups = await self.running["replay_buffer"].state.route()
            (folder / REPLAY_BUFFER).write_text(to_json(groups))
        if self._rollouts is not None and (held := self._rollouts.held(done)):
            (folder / ROLLOUT).write_text(to_json(held))

    def learned(self) -> int:
        """Calls so far that may have changed what checkpoints keep."""
        return sum(changes(self.running[name]) for name in self._learning())

    def is_learning(self) -> bool:
        """Whether one of those services is at work."""
        return any(self.running[name].metrics()["in_flight"] for name in self._learning())

    def _learning(self) -> list[str]:
        return [name for name in ("trainer", *self.own.kept()) if name in self.running]

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
