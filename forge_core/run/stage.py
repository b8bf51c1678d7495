"""What a recipe drives: the parts of one stage, its steps, its weights and its held-out score.

The kernel does here what every recipe would have to repeat: services, the weight handshake, the
order of tasks, evaluation, checkpoints, resuming, stopping. A recipe is left with its algorithm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forge_core.command import forge_command
from forge_core.data.order import TaskOrder
from forge_core.errors import RunInterrupted, RunStopped, UsageError
from forge_core.models.stop_tokens import stop_token_ids
from forge_core.replay.component import replay_buffer
from forge_core.replay.saved import from_json, to_json
from forge_core.run.addresses import Addresses
from forge_core.run.checkpoint import REPLAY_BUFFER, RunState
from forge_core.run.evaluation import evaluate
from forge_core.run.pace import Counts, Pace
from forge_core.run.plan import early_context, evaluates, placements
from forge_core.run.records import StepRecord
from forge_core.run.step import Step
from forge_core.runtimes.local import LocalRuntime
from forge_core.services.options import ServiceOptions
from forge_core.services.service import Service
from forge_core.services.weights import update_weights
from forge_core.types import Episode, Sampling, Task, TrainSequence, WeightManifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.config.resolve import StageConfig
    from forge_core.protocols import Dataset, Environment, Loss
    from forge_core.rewards.pool import RewardPool
    from forge_core.run.session import RunSession


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
        self.kept: dict[str, Any] = dict(restored.extra) if restored else {}
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
        self._manifest: WeightManifest | None = None
        self._trainer: Service | None = None
        self._policy: Service | None = None
        self._reference: Service | None = None
        self._rewards: RewardPool | None = None
        self._replay_buffer: Service | None = None
        self._addresses = Addresses(session.folder.addresses, session.broadcast.event)
        # The learning-rate schedule ends where the stage does, however its length was given.
        training = config.training.model_copy(update={"steps": total_steps, "num_epochs": None})
        self.context = replace(
            early_context(config),
            model=config.model.model_copy(update={"path": model, "init": None}),
            training=training,
            channel=session.folder.channel(config.name),
            loss=config.loss,
            transport=config.transport,
            services=placements(config),
            logs=session.folder.logs,
        )
        self.seed = self.context.seed

    # The parts, made when they are first asked for.

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from forge_core.models.folder import load_tokenizer

        return load_tokenizer(self.model)

    @cached_property
    def dataset(self) -> Dataset:
        return self.session.dataset(self.config, "dataset")

    @cached_property
    def eval_dataset(self) -> Dataset:
        return self.session.dataset(self.config, "eval_dataset")

    @cached_property
    def tasks(self) -> TaskOrder:
        position = self._restored.position if self._restored else 0
        return TaskOrder(len(self.dataset), self.seed, position=position)

    @cached_property
    def environment(self) -> Environment:
        assert self.config.environment is not None
        return self.config.environment.build(self.context)

    @cached_property
    def loss(self) -> Loss:
        assert self.config.loss is not None
        return self.config.loss.build(self.context)

    def take(self, count: int) -> list[Task]:
        """The next tasks in the run's order; goes round at the end of the dataset."""
        return [self.dataset[index] for index in self.tasks.take(count)]

    def task_at(self, place: int) -> Task:
        """The task at a place of the run's order, for whoever looks ahead; takes nothing."""
        return self.dataset[self.tasks.at(place)]

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
                on_event=self.session.broadcast.event,
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
                on_event=self.session.broadcast.event,
            )
        return self._reference

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

    async def policy(self) -> Service:
        """The generator service, holding the trainer's current weights."""
        if self._policy is None:
            if self.config.generator is None:
                raise UsageError("generator.use: no generator is installed")
            self._policy = await Service.start(
                self.session.runtime,
                self.config.generator,
                self.context,
                name="generator",
                placement=self.config.generator_placement,
                options=self.config.generator_options,
                watchdog=self.session.watchdog,
                on_event=self.session.broadcast.event,
            )
            await self.publish()
            if self.config.generator.component.serves:
                await self._addresses.open(self._policy)
        return self._policy

    async def publish(self) -> int:
        """Send the trainer's weights to every replica, proved by checksum; returns the version."""
        trainer = await self.trainer()
        if self._policy is None:
            # Starting the service publishes.
            await self.policy()
            return self.version
        manifest: WeightManifest = await trainer.publish.route(self.version + 1)
        await update_weights(self._policy, manifest)
        before, self._manifest = self._manifest, manifest
        self.version = manifest.version
        self._published_at = self._at
        trained = self._counts().trained
        has_trained, self._published_after = trained > self._published_after, trained
        if before is not None:
            await self.session.transport(self).drop(before.version)
            if has_trained and before.checksum == manifest.checksum:
                self.session.broadcast.event(
                    "warning",
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
            placed = "replay_buffer" in placements(self.config)
            self._replay_buffer = await Service.start(
                self.session.runtime if placed else LocalRuntime(),
                replay_buffer(max_staleness),
                replace(self.context, loss=None, transport=None),
                name="replay_buffer",
                placement=self.config.replay_buffer_placement,
                watchdog=self.session.watchdog,
                on_event=self.session.broadcast.event,
            )
            if self._restored is not None:
                saved = self.session.checkpoints.path(self._restored.step) / REPLAY_BUFFER
                if saved.is_file():
                    await self._restore_replay_buffer(self._replay_buffer, saved)
        return self._replay_buffer

    async def _restore_replay_buffer(self, service: Service, saved: Path) -> None:
        groups, gone = from_json(saved.read_text(), self.task_at)
        if gone:
            self.session.broadcast.event(
                "warning",
                f"the replay buffer of {saved.parent} has groups of {len(gone)} tasks that the "
                f"dataset does not have where it had them ({', '.join(gone[:3])}, ...): left out",
            )
        await service.load.route(groups)

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Judge episodes with the config's rewards, then let plugins see (and change) them."""
        if self._rewards is None:
            from forge_core.rewards.pool import RewardPool

            placed = "rewards" in placements(self.config)
            self._rewards = RewardPool(
                self.config.rewards,
                self.context,
                runtime=self.session.runtime if placed else None,
                placement=self.config.reward_placement,
                log=self.session.folder.rewards_log,
                on_event=self.session.broadcast.event,
                watchdog=self.session.watchdog,
            )
        await self._rewards.score(episodes)
        for episode in episodes:
            self.session.hook.forge_episode_finished(episode=episode)

    # The course of the stage.

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
        while self._step < self.total_steps:
            step = Step(self._step + 1, offset + self._step + 1)
            self._at = step.number
            before = self._counts()
            yield step
            step.finish()
            self._step += 1
            self._report(step)
            last = self._step == self.total_steps
            if warning := self._pace.step_done(before, self._counts(), last=last):
                self.session.broadcast.event("warning", warning)
            interval = self.config.evaluation.interval
            if interval and self._step % interval == 0 and not last:
                await self._evaluate("during")
            save_interval = self.session.config.checkpointing.save_interval
            if last or (save_interval and self._step % save_interval == 0):
                await self.save()
                saved_at = self._step
            if self.session.stop.requested and not last:
                if saved_at != self._step:
                    await self.save()
                raise RunInterrupted(
                    f"stopped by {self.session.stop.requested} at step {step.run_number}; "
                    f"go on with: {forge_command()} run --resume {self.session.folder.path}"
                )
        await self._evaluate("after")

    def _counts(self) -> Counts:
        trainer, policy = self._trainer, self._policy
        return Counts(
            trained=trainer.answered["train_step"] if trainer else 0,
            sampled=policy.answered["generate"] if policy else 0,
            version=self.version,
        )

    def _report(self, step: Step) -> None:
        for service in (self._policy, self._reference):
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
        self.session.last_record = record
        self.session.broadcast.step(record, step.episodes)

    async def save(self) -> Path:
        """Write a checkpoint of the stage as it stands between two steps."""
        trainer = await self.trainer()
        run_step = self.session.steps_before(self) + self._step
        draft = self.session.checkpoints.begin(run_step)
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
            extra=self.kept,
        )
        place = self.session.checkpoints.commit(draft, state)
        self.session.broadcast.event(
            "checkpoint", f"checkpoint {place.name}", {"step": run_step, "path": str(place)}
        )
        self.session.hook.forge_checkpoint_saved(folder=place, step=run_step)
        return place

    async def _evaluate(self, moment: Literal["before", "during", "after"]) -> None:
        if not evaluates(self.config):
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
        if self._step < self.total_steps:
            raise RunStopped(
                f"stage {self.name!r} ended at step {self._step} of {self.total_steps}"
            )

    async def close(self) -> None:
        """Give everything back, whatever state it is in; the first failure is raised at the end."""
        errors: list[Exception] = []
        parts = (self._policy, self._trainer, self._reference, self._rewards, self._replay_buffer)
        for part in parts:
            if part is not None:
                try:
                    await part.close()
                except Exception as error:  # the others must still be closed
                    errors.append(error)
        self._addresses.close()
        if errors:
            raise errors[0]
