"""The course of a stage: steps and their records, evaluations, checkpoints, pace, stopping."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forge_core import Evaluation, RunInterrupted, RunStopped, Step, StepRecord
from forge_core.command import forge_command
from forge_run import interrupt
from forge_run.checkpoint import RunState, SaveTimes, write_state
from forge_run.pace import Counts, Pace
from forge_run.trackers.lines import METRICS
from forge_services.deadline import Hurried

if TYPE_CHECKING:
    from forge_core import StageConfig
    from forge_run.inputs import Inputs
    from forge_run.parts import Parts
    from forge_run.publishing import Publishing
    from forge_run.session import RunSession

Moment = Literal["before", "during", "after"]


@dataclass(frozen=True)
class _Mark:
    """A stage as it was between two steps."""

    learned: int
    position: int
    python_rng: Any
    recipe_state: dict[str, Any]


class Loop:
    """Counts the steps of a stage and does what is due between them.

    Args:
        session: the run that the stage belongs to.
        config: of the stage.
        total_steps: the target.
        inputs: the stage's data and environment.
        parts: its services.
        publishing: the published versions of each of its trainers.
        restored: where to go on, when the stage was begun by an earlier process.
        evaluate: scores the published weights on held-out tasks at a step of the run.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        *,
        total_steps: int,
        inputs: Inputs,
        parts: Parts,
        publishing: Mapping[str, Publishing],
        restored: RunState | None,
        evaluate: Callable[[Moment, int], Awaitable[Evaluation]],
    ) -> None:
        self.total_steps = total_steps
        self.recipe_state: dict[str, Any] = dict(restored.recipe_state) if restored else {}
        self._session = session
        self._config = config
        self._inputs = inputs
        self._parts = parts
        self._publishing = publishing
        self._restored = restored
        self._evaluate_at = evaluate
        self._done = restored.stage_step if restored else 0
        """Steps done."""
        self._offset = session.steps_before(config.name)
        """Steps of earlier stages."""
        self._pace = Pace(config)
        self._scope: asyncio.Timeout | None = None
        """Of the recipe, while it runs."""
        self._froze = False

    async def drive(self, run: Callable[[], Awaitable[None]]) -> None:
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
                if self._session.stop.requested:
                    self.stop_soon()
                await run()
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
            if self._froze:
                gc.unfreeze()
        await self._give_step_up()

    def stop_soon(self) -> None:
        """Give the step up unless it ends soon by itself."""
        asyncio.get_running_loop().call_later(interrupt.GRACE, self._stop_now)

    def _stop_now(self) -> None:
        if self._scope is None:
            return
        loop = asyncio.get_running_loop()
        if self._parts.is_learning() or self._parts.learned() > self._mark.learned:
            loop.call_later(1.0, self._stop_now)  # what was trained cannot be taken back
        else:
            self._scope.reschedule(loop.time())

    async def _give_step_up(self) -> None:
        """Save the stage as it was before the step under way.

        Raises:
            RunInterrupted: always.
        """
        self._inputs.go_back(self._mark.position)
        random.setstate(self._mark.python_rng)
        self.recipe_state = self._mark.recipe_state
        step = self._offset + self._done
        if self._done and step not in self._session.checkpoints.steps():
            await self.save()
        raise RunInterrupted(
            f"stopped by {self._session.stop.requested} at step {step}, in the middle of the next; "
            f"go on with: {forge_command()} run --resume {self._session.folder.path}"
        )

    def _marked(self) -> _Mark:
        return _Mark(
            learned=self._parts.learned(),
            position=self._inputs.position,
            python_rng=random.getstate(),
            recipe_state=deepcopy(self.recipe_state),
        )

    async def steps(self) -> AsyncIterator[Step]:
        """Yield the stage's steps that are still to do; keep record, score and checkpoints."""
        self._freeze()
        if self._done == 0:
            await self._evaluate("before")
        saved_at = self._done
        saves = SaveTimes(self._session.config.checkpointing)
        while self._done < self.total_steps:
            self._mark = self._marked()
            step = Step(self._done + 1, self._offset + self._done + 1)
            before = self._counts()
            dropped = self._inputs.dropped
            yield step
            if self._config.dataset_keys.on_failure == "drop":
                step.record({"dataset/dropped": self._inputs.dropped - dropped})
            if step.episodes and self._inputs.has_played:
                step.record({"environment/retried": self._inputs.environment.take_retried()})
            step.finish()
            self._done += 1
            self._mark = self._marked()
            self._report(step)
            last = self._done == self.total_steps
            learned = step.metrics.get("trained_tokens") != 0
            if warning := self._pace.step_done(before, self._counts(), learned=learned, last=last):
                self._session.events.event("warning", warning)
            interval = self._config.evaluation.interval
            if interval and self._done % interval == 0 and not last:
                await self._evaluate("during")
            if last or saves.due(self._done):
                await self.save()
                saves.saved()
                saved_at = self._done
            if self._session.stop.requested and not last:
                if saved_at != self._done:
                    await self.save()
                raise RunInterrupted(
                    f"stopped by {self._session.stop.requested} at step {step.run_number}; "
                    f"go on with: {forge_command()} run --resume {self._session.folder.path}"
                )
        restored = self._restored
        if restored is not None and restored.stage_step == self._done and not restored.stage_done:
            await self.save()  # the target was lowered to what was done
        await self._evaluate("after")

    def _freeze(self) -> None:
        """Keep the garbage collector from looking through what lasts as long as the stage (models,
        modules) again and again: with torch loaded, each look takes a quarter of a second."""
        if not self._froze and gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
            self._froze = True

    def _counts(self) -> Counts:
        running = self._parts.running
        return Counts(
            trained=running["trainer"].answered["train_step"] if "trainer" in running else 0,
            sampled=running["generator"].answered["generate"] if "generator" in running else 0,
            version=self._publishing["trainer"].version,
        )

    def _report(self, step: Step) -> None:
        step.timing.update(self._parts.running.laps())
        record = StepRecord(
            step=step.run_number,
            stage=self._config.name,
            stage_step=self._done,
            stage_steps=self.total_steps,
            metrics=step.metrics,
            timing=step.timing,
        )
        self._session.stepped(record, step.episodes)

    async def _evaluate(self, moment: Moment) -> None:
        if self._config.evaluates():
            evaluation = await self._evaluate_at(moment, self._offset + self._done)
            self._session.evaluated(evaluation)

    async def save(self) -> Path:
        """Write a checkpoint of the stage between two steps.

        Raises:
            RunFailed: it cannot be written, or a weight is not finite; nothing of it is left.
            WriterLost: another process has taken over the run folder.
        """
        session = self._session
        session.writer.check()
        await self._parts.trainer()
        run_step = self._offset + self._done
        with session.checkpoints.draft(run_step, confirm=session.writer.check) as draft:
            await self._parts.save(draft, self._done)
            algorithm, internal, gauss = random.getstate()
            state = RunState(
                step=run_step,
                stage=self._config.name,
                stage_step=self._done,
                stage_done=self._done == self.total_steps,
                version=self._publishing["trainer"].version,
                versions={
                    name: publishing.version
                    for name, publishing in self._publishing.items()
                    if name != "trainer"
                },
                position=self._inputs.position,
                python_rng=[algorithm, list(internal), gauss],
                recipe_state=self.recipe_state,
                **session.progress.to_state(),
            )
            write_state(draft, state)
            metrics = session.folder.path / METRICS
            if metrics.is_file():
                shutil.copyfile(metrics, draft / METRICS)
        place = session.checkpoints.path(run_step)
        session.events.event(
            "checkpoint", f"checkpoint {place.name}", {"step": run_step, "path": str(place)}
        )
        session.events.checkpoint(place, run_step)
        return place

    def check_finished(self) -> None:
        """The recipe returned: was the target reached?

        Raises:
            RunStopped: it was not.
            RunFailed: a part of the reward failed on everything it was given.
        """
        self._parts.check_worked()
        if self._done < self.total_steps:
            raise RunStopped(
                f"stage {self._config.name!r} ended at step {self._done} of {self.total_steps}"
            )
