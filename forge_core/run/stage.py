"""What a recipe drives: the parts of one stage, its steps, its weights and its held-out score.

The kernel does here what every recipe would have to repeat: services, the weight handshake, the
order of tasks, evaluation, checkpoints, resuming, stopping. A recipe is left with its algorithm.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forge_core.command import forge_command
from forge_core.contracts.blame import blaming
from forge_core.contracts.errors import RunFailed, RunInterrupted, RunStopped, UsageError
from forge_core.contracts.records import StepRecord
from forge_core.contracts.services import ServiceOptions
from forge_core.contracts.step import Step
from forge_core.contracts.types import Episode, Sampling, Task, TrainSequence, WeightManifest
from forge_core.data.order import TaskOrder
from forge_core.deadline import Hurried
from forge_core.models.stop_tokens import stop_token_ids
from forge_core.replay.component import replay_buffer
from forge_core.replay.saved import from_json, to_json
from forge_core.run import interrupt
from forge_core.run.addresses import Addresses
from forge_core.run.checkpoint import REPLAY_BUFFER, RunState, SaveTimes, write_state
from forge_core.run.environment import GuardedEnvironment
from forge_core.run.evaluation import evaluate
from forge_core.run.pace import Counts, Pace
from forge_core.runtimes.local import LocalRuntime
from forge_core.services.service import Service
from forge_core.services.weights import update_weights
from forge_core.trackers.lines import METRICS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.contracts.component import Selection
    from forge_core.contracts.config import StageConfig
    from forge_core.contracts.protocols import Loss, Recipe
    from forge_core.rewards.pool import RewardPool
    from forge_core.run.dataset import GuardedDataset
    from forge_core.run.session import RunSession


@dataclass(frozen=True)
class _Mark:
    """A stage as it was between two steps."""

    trained: int
    position: int
    python_rng: Any
    recipe_state: dict[str, Any]


class Stage:
    """One stage of a run.

    Args:
        session: the run it belongs to.
        config: this stage's sections.
        model: folder with the weights the stage starts from.
        total_steps: the target.
        restored: where to go on, when the stage was begun by an earlier process.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        *,
        model: Path,
        total_steps: int,
        restored: RunState | None,
    ) -> None:
        self.session = session
        self.config = config
        self.name = config.name
        self.total_steps = total_steps
        self.model = model
        self.recipe_state: dict[str, Any] = dict(restored.recipe_state) if restored else {}
        """JSON-able state of the recipe's own; comes back after a resume."""
        self.version = -1
        """Policy version last published; -1 before the first."""
        self._restored = restored
        self._step = restored.stage_step if restored else 0
        """Steps done."""
        self._at = self._step
        """The step under way, else the last one done."""
        self._published_at: int | None = None
        self._published_after = 0
        """Optimizer steps that this process had made when it last published."""
        self._pace = Pace(config)
        self._scope: asyncio.Timeout | None = None
        """Of the recipe, while it runs."""
        self._manifest: WeightManifest | None = None
        self._trainer: Service | None = None
        self._generator: Service | None = None
        self._reference: Service | None = None
        self._rewards: RewardPool | None = None
        self._replay_buffer: Service | None = None
        self._services: dict[str, Service] = {}
        self._components: dict[str, Any] = {}
        self._addresses = Addresses(session.folder.addresses, session.events.event)
        # The learning-rate schedule ends where the stage does, however its length was given.
        training = config.training.model_copy(update={"steps": total_steps, "num_epochs": None})
        self.context = replace(
            config.early_context(),
            model=config.model.model_copy(update={"path": model, "init": None}),
            training=training,
            channel=session.folder.channel(config.name),
            loss=config.loss,
            transport=config.transport,
            services=config.placements(),
            logs=session.folder.logs,
        )
        self.seed = self.context.seed

    # The parts, made when they are first asked for.

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from forge_core.models.folder import load_tokenizer

        return load_tokenizer(self.model, trust_remote_code=self.config.model.trust_remote_code)

    @cached_property
    def dataset(self) -> GuardedDataset:
        return self.session.dataset(self.config, "dataset")

    @cached_property
    def eval_dataset(self) -> GuardedDataset:
        return self.session.dataset(self.config, "eval_dataset")

    @cached_property
    def tasks(self) -> TaskOrder:
        position = self._restored.position if self._restored else 0
        return TaskOrder(len(self.dataset), self.seed, position=position)

    @cached_property
    def environment(self) -> GuardedEnvironment:
        assert self.config.environment is not None
        with blaming(self.config.environment, "build", RunFailed):
            built = self.config.environment.build(self.context)
        return GuardedEnvironment(
            self.config.environment,
            self.config.environment_keys,
            built,
            waiting=self.session.waiting,
            on_event=self.session.events.event,
        )

    @cached_property
    def loss(self) -> Loss:
        assert self.config.loss is not None
        with blaming(self.config.loss, "build", RunFailed):
            return self.config.loss.build(self.context)

    def take(self, count: int) -> list[Task]:
        """The next tasks in the run's order; goes round at the end of the dataset."""
        return [self.dataset[index] for index in self.tasks.take(count)]

    def task_at(self, place: int) -> Task:
        """The task at a place of the run's order, for whoever looks ahead; takes nothing."""
        return self.dataset[self.tasks.at(place)]

    @property
    def position(self) -> int:
        """Tasks taken so far: the place of the next one in the run's order."""
        return self.tasks.position

    def advance(self, count: int) -> None:
        """Count the next tasks as taken without reading them."""
        self.tasks.take(count)

    def sampling(self, **changes: Any) -> Sampling:
        """The config's ``sampling`` section with the model's stop tokens."""
        section = self.config.sampling
        base = Sampling(
            max_tokens=section.max_tokens,
            temperature=section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            stop_token_ids=stop_token_ids(self.model, self.tokenizer),
        )
        return replace(base, **changes)

    async def trainer(self) -> Service:
        """The trainer, with the stage's weights or, after a resume, the checkpoint's.

        The reference is held first: it is what the stage began with, also after a resume.
        """
        if self._trainer is None:
            if self.config.trainer is None:
                raise UsageError("trainer.use: no trainer is installed")
            self._trainer = await Service.start(
                self.session.runtime,
                self.config.trainer,
                self.context,
                name="trainer",
                placement=self.config.trainer_placement,
                options=ServiceOptions(retry=False),
                watchdog=self.session.watchdog,
                on_event=self.session.events.event,
            )
            if self.config.loss is not None and "reference_logprobs" in self.loss.needs:
                if self.config.reference is None:
                    await self._trainer.hold_reference.route()
                else:
                    await self._reference_service()
            if self._restored is not None and self._restored.stage_step > 0:
                checkpoint = self.session.checkpoints.verify(self._restored.step)
                await self._trainer.load.route(checkpoint)
                algorithm, internal, gauss = self._restored.python_rng
                random.setstate((algorithm, tuple(internal), gauss))
                # Publishing again gives the replicas the version they had.
                self.version = max(-1, self._restored.version - 1)
        return self._trainer

    async def _reference_service(self) -> Service:
        """The service that answers with the weights the stage began with, where the config has one.

        It is built without a loss, so that it never holds gradients or optimizer state.
        """
        if self._reference is None:
            assert self.config.reference is not None
            self._reference = await Service.start(
                self.session.runtime,
                self.config.reference,
                replace(self.context, loss=None, transport=None),
                name="reference",
                placement=self.config.reference_placement,
                options=ServiceOptions(concurrency=1),  # a trainer takes one call at a time
                watchdog=self.session.watchdog,
                on_event=self.session.events.event,
            )
        return self._reference

    async def service(self, section: str) -> Service:
        """The replicas of a placed section that a plugin has added."""
        if section not in self._services:
            added = self.config.sections[section]
            self._services[section] = await Service.start(
                self.session.runtime,
                self._chosen(section),
                replace(self.context, loss=None, transport=None),
                name=section,
                placement=added.placement,
                options=added.options,
                watchdog=self.session.watchdog,
                on_event=self.session.events.event,
            )
        return self._services[section]

    def component(self, section: str) -> Any:
        """The component of a section that a plugin has added, built in this process."""
        if section not in self._components:
            chosen = self._chosen(section)
            with blaming(chosen, "build", RunFailed):
                self._components[section] = chosen.build(self.context)
        return self._components[section]

    def _chosen(self, section: str) -> Selection[Any]:
        chosen = self.config.sections[section].selection
        if chosen is None:
            raise UsageError(f"{section}: recipe {self.config.recipe.name!r} needs this section")
        return chosen

    async def reference_logprobs(
        self, sequences: Sequence[TrainSequence], *, temperature: float = 1.0
    ) -> list[list[float]]:
        """Logprob of every token under the weights the stage began with, whoever holds them.

        Args:
            sequences: replicas of the reference share them evenly.
            temperature: logits are divided by it.

        Returns:
            one list for each sequence, as ``Trainer.logprobs``.
        """
        if self.config.reference is None:
            trainer = await self.trainer()
            held: list[list[float]] = await trainer.logprobs.route(
                sequences, reference=True, temperature=temperature
            )
            return held
        reference = await self._reference_service()
        replicas = self.config.reference_placement.replicas
        bounds = [len(sequences) * part // replicas for part in range(replicas + 1)]
        parts = [sequences[begin:end] for begin, end in pairwise(bounds) if begin < end]
        rows = await asyncio.gather(
            *(reference.logprobs.route(part, temperature=temperature) for part in parts)
        )
        return [row for part in rows for row in part]

    async def generator(self) -> Service:
        """The generator service, holding the trainer's current weights."""
        if self._generator is None:
            if self.config.generator is None:
                raise UsageError("generator.use: no generator is installed")
            self._generator = await Service.start(
                self.session.runtime,
                self.config.generator,
                self.context,
                name="generator",
                placement=self.config.generator_placement,
                options=self.config.generator_options,
                watchdog=self.session.watchdog,
                on_event=self.session.events.event,
            )
            await self.publish()
            if self.config.generator.component.serves:
                await self._addresses.open(self._generator)
        return self._generator

    async def publish(self) -> int:
        """Send the trainer's weights to every replica, proved by checksum; returns the version."""
        trainer = await self.trainer()
        if self._generator is None:
            # Starting the service publishes.
            await self.generator()
            return self.version
        manifest: WeightManifest = await trainer.publish.route(self.version + 1)
        await update_weights(self._generator, manifest)
        before, self._manifest = self._manifest, manifest
        self.version = manifest.version
        self._published_at = self._at
        trained = self._counts().trained
        has_trained, self._published_after = trained > self._published_after, trained
        if before is not None:
            assert self.config.transport is not None
            transport = self.session.transport(self)
            with blaming(self.config.transport, "drop", RunFailed):
                await transport.drop(before.version)
            if has_trained and before.checksum == manifest.checksum:
                self.warn(
                    f"version {manifest.version} equals version {before.version}: "
                    "the last steps changed no weight",
                )
        return self.version

    async def replay_buffer(self, max_staleness: int) -> Service:
        """The service that keeps groups until they are trained; with the checkpoint's, if resumed.

        In this process unless the config gives it one of its own. A replica that died is replaced
        by an empty one.

        Args:
            max_staleness: of ``forge_core.replay.buffer.ReplayBuffer``.
        """
        if self._replay_buffer is None:
            placed = "replay_buffer" in self.config.placements()
            self._replay_buffer = await Service.start(
                self.session.runtime if placed else LocalRuntime(),
                replay_buffer(max_staleness),
                replace(self.context, loss=None, transport=None),
                name="replay_buffer",
                placement=self.config.replay_buffer_placement,
                watchdog=self.session.watchdog,
                on_event=self.session.events.event,
            )
            if self._restored is not None:
                saved = self.session.checkpoints.path(self._restored.step) / REPLAY_BUFFER
                if saved.is_file():
                    await self._restore_replay_buffer(self._replay_buffer, saved)
        return self._replay_buffer

    async def _restore_replay_buffer(self, service: Service, saved: Path) -> None:
        groups, gone = from_json(saved.read_text(), self.task_at)
        if gone:
            self.warn(
                f"the replay buffer of {saved.parent} has groups of {len(gone)} tasks that the "
                f"dataset does not have where it had them ({', '.join(gone[:3])}, ...): left out",
            )
        await service.load.route(groups)

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Judge episodes with the config's rewards, then let plugins see (and change) them."""
        if self._rewards is None:
            from forge_core.rewards.confinement import Confinement
            from forge_core.rewards.pool import RewardPool

            placed = "rewards" in self.config.placements()
            self._rewards = RewardPool(
                self.config.rewards,
                self.context,
                runtime=self.session.runtime if placed else None,
                placement=self.config.reward_placement,
                log=self.session.folder.rewards_log,
                confinement=Confinement.of(self.config.reward_workers),
                on_event=self.session.events.event,
                watchdog=self.session.watchdog,
            )
        if self.config.environment is not None:
            self.environment.check(episodes)
        await self._rewards.score(
            [episode for episode in episodes if not episode.environment_failure]
        )
        for episode in episodes:
            self.session.events.episode(episode)

    def warn(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Show a warning, and keep it in ``events.jsonl`` and the summary."""
        self.session.events.event("warning", message, data)

    def waiting(self, what: str, detail: str = "") -> AbstractContextManager[None]:
        """Name what a block waits for, so that a wait that takes long is reported."""
        return self.session.waiting(what, detail)

    # The course of the stage.

    async def drive(self, recipe: Recipe) -> None:
        """Run the recipe to its end.

        A run that is asked to stop does not wait for a step that hangs, or takes long, before it
        is trained on: the step is given up, and made again by a resume.

        Raises:
            RunInterrupted: a signal asked for it; there is a checkpoint of the last whole step.
        """
        self._mark = self._marked()
        self._scope = scope = asyncio.timeout(None)
        try:
            async with scope:
                if self.session.stop.requested:
                    self.stop_soon()
                await recipe.run(self)
        except TimeoutError:
            if not scope.expired():
                raise
        except Hurried:
            pass
        else:
            if not scope.expired():
                return
        finally:
            self._scope = None
        await self._give_step_up()

    def stop_soon(self) -> None:
        """Give the step up unless it ends soon by itself."""
        asyncio.get_running_loop().call_later(interrupt.GRACE, self._stop_now)

    def _stop_now(self) -> None:
        if self._scope is None:
            return
        loop = asyncio.get_running_loop()
        busy = self._trainer is not None and self._trainer.metrics()["in_flight"]
        if busy or self._counts().trained > self._mark.trained:
            loop.call_later(1.0, self._stop_now)  # what was trained cannot be taken back
        else:
            self._scope.reschedule(loop.time())

    async def _give_step_up(self) -> None:
        """Save the stage as it was before the step under way.

        Raises:
            RunInterrupted: always.
        """
        if "tasks" in self.__dict__:
            self.tasks.position = self._mark.position
        random.setstate(self._mark.python_rng)
        self.recipe_state = self._mark.recipe_state
        step = self.session.steps_before(self) + self._step
        if self._step and step not in self.session.checkpoints.steps():
            await self.save()
        raise RunInterrupted(
            f"stopped by {self.session.stop.requested} at step {step}, in the middle of the next; "
            f"go on with: {forge_command()} run --resume {self.session.folder.path}"
        )

    def _marked(self) -> _Mark:
        return _Mark(
            trained=self._counts().trained,
            position=self.tasks.position if self.config.dataset is not None else 0,
            python_rng=random.getstate(),
            recipe_state=deepcopy(self.recipe_state),
        )

    async def steps(self) -> AsyncIterator[Step]:
        """Yield the stage's steps that are still to do; keep record, score and checkpoints.

        Raises:
            RunInterrupted: a signal asked for it; a checkpoint was written first.
            RunFailed: the recipe makes more optimizer steps than its schedule has.
        """
        if self._step == 0:
            await self._evaluate("before")
        offset = self.session.steps_before(self)
        saved_at = self._step
        saves = SaveTimes(self.session.config.checkpointing)
        while self._step < self.total_steps:
            self._mark = self._marked()
            step = Step(self._step + 1, offset + self._step + 1)
            self._at = step.number
            before = self._counts()
            dropped = self._dropped_items()
            yield step
            if self.config.dataset_keys.on_failure == "drop":
                step.record({"dataset/dropped": self._dropped_items() - dropped})
            if step.episodes and "environment" in self.__dict__:
                step.record({"environment/retried": self.environment.take_retried()})
            step.finish()
            self._step += 1
            self._mark = self._marked()
            self._report(step)
            last = self._step == self.total_steps
            learned = step.metrics.get("trained_tokens") != 0
            if warning := self._pace.step_done(before, self._counts(), learned=learned, last=last):
                self.warn(warning)
            interval = self.config.evaluation.interval
            if interval and self._step % interval == 0 and not last:
                await self._evaluate("during")
            if last or saves.due(self._step):
                await self.save()
                saves.saved()
                saved_at = self._step
            if self.session.stop.requested and not last:
                if saved_at != self._step:
                    await self.save()
                raise RunInterrupted(
                    f"stopped by {self.session.stop.requested} at step {step.run_number}; "
                    f"go on with: {forge_command()} run --resume {self.session.folder.path}"
                )
        restored = self._restored
        if restored is not None and restored.stage_step == self._step and not restored.stage_done:
            await self.save()  # the target was lowered to what was done
        await self._evaluate("after")

    def _dropped_items(self) -> int:
        return self.dataset.dropped if self.config.dataset is not None else 0

    def _counts(self) -> Counts:
        trainer, generator = self._trainer, self._generator
        return Counts(
            trained=trainer.answered["train_step"] if trainer else 0,
            sampled=generator.answered["generate"] if generator else 0,
            version=self.version,
        )

    def _report(self, step: Step) -> None:
        for service in (self._generator, self._reference, *self._services.values()):
            if service is not None:
                lap = service.lap()
                step.timing.update({f"{service.name}_{name}": value for name, value in lap.items()})
        record = StepRecord(
            step=step.run_number,
            stage=self.name,
            stage_step=self._step,
            stage_steps=self.total_steps,
            metrics=step.metrics,
            timing=step.timing,
        )
        self.session.stepped(record, step.episodes)

    async def save(self) -> Path:
        """Write a checkpoint of the stage as it stands between two steps.

        Raises:
            RunFailed: it cannot be written, or a weight is not finite; nothing of it is left.
            WriterLost: another process has taken over the run folder.
        """
        self.session.writer.check()
        trainer = await self.trainer()
        run_step = self.session.steps_before(self) + self._step
        confirm = self.session.writer.check
        with self.session.checkpoints.draft(run_step, confirm=confirm) as draft:
            await trainer.save.route(draft)
            if self._replay_buffer is not None:
                groups = await self._replay_buffer.state.route()
                (draft / REPLAY_BUFFER).write_text(to_json(groups))
            algorithm, internal, gauss = random.getstate()
            state = RunState(
                step=run_step,
                stage=self.name,
                stage_step=self._step,
                stage_done=self._step == self.total_steps,
                version=self.version,
                position=self.tasks.position,
                python_rng=[algorithm, list(internal), gauss],
                recipe_state=self.recipe_state,
                **self.session.progress.to_state(),
            )
            write_state(draft, state)
            metrics = self.session.folder.path / METRICS
            if metrics.is_file():
                shutil.copyfile(metrics, draft / METRICS)
        place = self.session.checkpoints.path(run_step)
        self.session.events.event(
            "checkpoint", f"checkpoint {place.name}", {"step": run_step, "path": str(place)}
        )
        self.session.events.checkpoint(place, run_step)
        return place

    async def _evaluate(self, moment: Literal["before", "during", "after"]) -> None:
        if not self.config.evaluates():
            return
        if self._published_at != self._at:
            await self.publish()
        evaluation = await evaluate(self, moment, self.session.steps_before(self) + self._step)
        self.session.evaluated(evaluation)

    def check_finished(self) -> None:
        """The recipe returned: was the target reached?

        Raises:
            RunStopped: it was not.
            RunFailed: a part of the reward failed on everything it was given.
        """
        if self._rewards is not None:
            self._rewards.check_judged()
            if self.config.environment is not None:
                self.environment.check_worked()
        if self._step < self.total_steps:
            raise RunStopped(
                f"stage {self.name!r} ended at step {self._step} of {self.total_steps}"
            )

    async def close(self) -> None:
        """Give everything back, whatever state it is in; the first failure is raised at the end."""
        errors: list[Exception] = []
        parts = (
            *(self._generator, self._trainer, self._reference, self._rewards, self._replay_buffer),
            *self._services.values(),
        )
        for part in parts:
            if part is not None:
                try:
                    await part.close()
                except Exception as error:  # the others must still be closed
                    errors.append(error)
        self._addresses.close()
        if errors:
            raise errors[0]
