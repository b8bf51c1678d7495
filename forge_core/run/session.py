"""One execution of a config, from the checks before it to the summary after it."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.contracts import blaming, check_task, described, steps_planned
from forge_core.errors import (
    DataError,
    ForgeError,
    RunFailed,
    RunInterrupted,
    RunStopped,
    UsageError,
)
from forge_core.models.folder import check_init, check_model
from forge_core.plugins.models import model_makers
from forge_core.run.broadcast import Broadcast
from forge_core.run.cautions import cautions
from forge_core.run.checkpoint import CheckpointStore, RunState
from forge_core.run.folder import RunFolder
from forge_core.run.interrupt import StopRequest
from forge_core.run.plan import (
    check_components,
    check_loss,
    check_reference,
    check_requirements,
    check_runtime,
    check_sampler,
    check_transport,
    early_context,
)
from forge_core.run.records import Evaluation, Outcome, RunInfo, StageInfo, StepRecord, Summary
from forge_core.run.tasks import check_tasks
from forge_core.run.unused import check_evaluation, unused_keys
from forge_core.watchdog import Watchdog, caller

if TYPE_CHECKING:
    from forge_core.config.resolve import RunConfig, StageConfig
    from forge_core.plugins.manager import PluginManager
    from forge_core.protocols import Dataset, Recipe, Runtime, Transport
    from forge_core.run.stage import Stage

WATCHDOG_SECONDS = 30.0
"""A wait longer than this is reported, and again at each doubling."""


class RunSession:
    """Everything the stages of a run share.

    Making one checks the config as far as can be without starting anything: components exist, data
    can be read, the loss gets what it needs. ``run`` then does the work.

    Args:
        config: resolved.
        plugins: where the lifecycle hooks come from.
        resume: run folder to go on with.
    """

    def __init__(
        self, config: RunConfig, plugins: PluginManager, *, resume: Path | None = None
    ) -> None:
        self.config = config
        self.hook = plugins.hook
        self._plugins = plugins
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._transports: dict[str, Transport] = {}
        self._evaluations: list[Evaluation] = []
        self.last_record: StepRecord | None = None
        self._recipes: list[Recipe] = []
        self.total_steps: list[int] = []
        check_model(config.model, model_makers(plugins))
        check_evaluation(config)
        for tracker in config.trackers.values():
            tracker.check(early_context(config.stages[0]))
        for stage in config.stages:
            self._check(stage)
        self.hook.forge_config_resolved(config=config)
        self._resumed = RunFolder.open(resume) if resume is not None else None
        if self._resumed is None:
            RunFolder.check_output(config.checkpointing.output_dir)
        else:
            self._resumed.check_init(config.model)

    def _check(self, stage: StageConfig) -> None:
        context = early_context(stage)
        with blaming(stage.recipe, "build"):
            recipe = stage.recipe.build(context)
        check_requirements(stage, recipe)
        loss = None
        if stage.loss is not None:
            with blaming(stage.loss, "build"):
                loss = stage.loss.build(context)
        if loss is not None:
            check_loss(stage, recipe, loss)
        check_reference(stage, loss)
        check_components(stage)
        check_runtime(stage, self.config.runtime)
        check_sampler(stage, loss)
        check_transport(stage, self.config.runtime.name)
        for section in ("dataset", "eval_dataset"):
            if getattr(stage, section) is not None:
                check_tasks(stage, recipe, section, self.dataset(stage, section))
        self._recipes.append(recipe)
        length = self._usable_tasks(stage, recipe) if stage.dataset is not None else 0
        with blaming(stage.recipe, "plan"):
            steps = recipe.plan(stage, length)
        self.total_steps.append(steps_planned(stage.recipe, steps))

    def _usable_tasks(self, stage: StageConfig, recipe: Recipe) -> int:
        """Tasks that the recipe takes of the stage's dataset in an epoch."""
        dataset = self.dataset(stage, "dataset")
        count: Callable[[StageConfig, Dataset], int] | None = getattr(recipe, "usable_tasks", None)
        if count is None:
            return len(dataset)
        with blaming(stage.recipe, "usable_tasks"):
            return count(stage, dataset)

    def dataset(self, stage: StageConfig, section: str) -> Dataset:
        """The built dataset of a stage's section; built once.

        Raises:
            DataError: it is empty.
            PluginError: it cannot be built, or its first item is no task.
        """
        key = (stage.name, section)
        if key not in self._datasets:
            selection = getattr(stage, section)
            with blaming(selection, "build"):
                dataset = selection.build(early_context(stage))
                length = len(dataset)
            if length == 0:
                raise DataError(f"{section}: dataset of stage {stage.name!r} is empty")
            check_task(selection, dataset, 0)
            self._datasets[key] = dataset
        return self._datasets[key]

    def transport(self, stage: Stage) -> Transport:
        """The controller's own end of a stage's transport."""
        if stage.name not in self._transports:
            assert stage.config.transport is not None
            self._transports[stage.name] = stage.config.transport.build(stage.context)
        return self._transports[stage.name]

    def steps_before(self, stage: Stage) -> int:
        """Steps of all earlier stages."""
        index = [config.name for config in self.config.stages].index(stage.name)
        return sum(self.total_steps[:index])

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep a score for the summary and tell of it."""
        self._evaluations.append(evaluation)
        self.broadcast.event(
            "evaluation",
            f"{evaluation.stage}: held-out score {evaluation.score:.3f} "
            f"{evaluation.moment} training ({evaluation.tasks} tasks, step {evaluation.step})",
            {
                "stage": evaluation.stage,
                "moment": evaluation.moment,
                "step": evaluation.step,
                "score": evaluation.score,
                "parts": dict(evaluation.parts),
                "tasks": evaluation.tasks,
            },
        )

    async def run(self) -> Summary:
        """Do every stage and say how it ended.

        Raises:
            RunFailed: something broke; trackers were told first.
            UsageError: the config or the data are wrong, and nothing was trained or scored; a new
                run's folder is removed.
            RunStopped: a stage ended short of its target.
            RunInterrupted: a signal asked for it; a checkpoint was written.
        """
        started = time.monotonic()
        if self.config.model.init is not None:
            check_init(self.config.model.init)
        context = early_context(self.config.stages[0])
        trackers = {}
        for name, selection in self.config.trackers.items():
            with blaming(selection, "build"):
                trackers[name] = selection.build(context)
        self.folder = self._resumed or RunFolder.create(
            self.config.checkpointing.output_dir, self.config.name
        )
        self.checkpoints = CheckpointStore(
            self.folder.checkpoints, keep=self.config.checkpointing.keep
        )
        state = self._newest_state()
        self.folder.write_config(self.config)
        self.folder.write_lock(self.config, self._plugins)
        self.broadcast = Broadcast(trackers, self.hook)
        self.watchdog = Watchdog(self.broadcast.event, threshold=WATCHDOG_SECONDS)
        self.broadcast.listeners.append(self.watchdog.heard)
        self.stop = StopRequest(self._stop_requested)
        failure: BaseException | None = None
        try:
            with self.stop, self.watchdog:
                self.broadcast.start(self._info(state))
                for line in [*unused_keys(self.config), *cautions(self.config)]:
                    self.broadcast.event("warning", line)
                with blaming(self.config.runtime, "build"):
                    self.runtime: Runtime = self.config.runtime.build(context)
                try:
                    await self._stages(state)
                finally:
                    try:
                        for transport in self._transports.values():
                            await transport.close()
                    finally:
                        await self.runtime.close()
        except BaseException as error:
            failure = self._failure(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            summary = self._summary(failure, time.monotonic() - started)
            self.folder.write_summary(summary)
            try:
                self.broadcast.finish(summary)
            finally:
                if summary.exit_code == UsageError.exit_code and self._resumed is None:
                    self.folder.remove()
        return summary

    def _failure(self, error: BaseException) -> BaseException:
        """What the run raises for an error: a ``ForgeError`` that says where it came from.

        What is wrong with the config or the data is a ``UsageError`` (exit code 2) only as long as
        nothing was trained or scored; later the run has failed (1).
        """
        if isinstance(error, UsageError):
            begun = self.last_record or self._evaluations or self.checkpoints.steps()
            return RunFailed(str(error), log_tail=error.log_tail) if begun else error
        if isinstance(error, ForgeError) or not isinstance(error, Exception):
            return error
        notes = "; ".join(note for note in getattr(error, "__notes__", ()) if "\n" not in note)
        step = self.last_record.step if self.last_record else 0
        return RunFailed(
            f"{described(error)}" + (f" ({notes})" if notes else ""),
            component=f"{caller.get()}, after step {step}",
        )

    async def _stages(self, state: RunState | None) -> None:
        from forge_core.models.folder import materialize
        from forge_core.run.stage import Stage

        random.seed(self.config.stages[0].training.seed)
        model = self.folder.model
        if not (model / "config.json").is_file():
            seed = self.config.stages[0].training.seed
            model = materialize(self.config.model, self.folder.model, seed)
        done = 0
        for index, (config, recipe) in enumerate(
            zip(self.config.stages, self._recipes, strict=True)
        ):
            total = self.total_steps[index]
            done += total
            if state is not None and state.step >= done:
                model = self.checkpoints.path(done)
                continue
            restored = state if state is not None and state.stage == config.name else None
            stage = Stage(self, config, model=model, total_steps=total, restored=restored)
            self.broadcast.event(
                "stage_started",
                f"stage {config.name} ({index + 1} of {len(self.config.stages)}): recipe "
                f"{config.recipe.name}, {total} steps",
                {
                    "stage": config.name,
                    "index": index,
                    "steps": total,
                    "components": self._components(config),
                },
            )
            caller.set(f"recipe {config.recipe.name}")
            try:
                await recipe.run(stage)
                stage.check_finished()
            finally:
                await stage.close()
            model = self.checkpoints.path(done)

    def _newest_state(self) -> RunState | None:
        steps = self.checkpoints.steps()
        if not steps:
            return None
        state = self.checkpoints.state(steps[-1])
        names = [stage.name for stage in self.config.stages]
        if state.stage not in names:
            raise UsageError(
                f"{self.folder.path} stands in stage {state.stage!r}, which the config does not "
                f"have (it has: {', '.join(names)})"
            )
        return state

    def _info(self, state: RunState | None) -> RunInfo:
        return RunInfo(
            name=self.config.name,
            folder=self.folder.path,
            stages=[
                StageInfo(name=stage.name, recipe=stage.recipe.name, steps=steps)
                for stage, steps in zip(self.config.stages, self.total_steps, strict=True)
            ],
            components=self._components(self.config.stages[0]),
            resumed_from=state.step if state is not None else None,
        )

    def _components(self, stage: StageConfig) -> dict[str, str]:
        """Section -> component of what runs in a stage."""
        named = {
            section: selection.name
            for section in ("generator", "trainer", "reference", "loss", "transport")
            if (selection := getattr(stage, section)) is not None
        }
        return {**named, "runtime": self.config.runtime.name}

    def _stop_requested(self, signal_name: str) -> None:
        self.broadcast.event(
            "stopping", f"{signal_name}: stopping after this step; once more to stop at once"
        )

    def _summary(self, failure: BaseException | None, seconds: float) -> Summary:
        outcome, exit_code, message = _outcome(failure)
        if outcome == "failed" and failure is not None:
            details = self.folder.path / "error.txt"
            details.write_text("".join(traceback.format_exception(failure)))
            self.broadcast.event("failed", message, {"traceback": str(details)})
        steps = self.checkpoints.steps()
        record = self.last_record
        return Summary(
            outcome=outcome,
            exit_code=exit_code,
            message=message,
            folder=self.folder.path,
            steps=record.step if record else (steps[-1] if steps else 0),
            seconds=seconds,
            metrics=dict(record.metrics) if record else {},
            evaluations=tuple(self._evaluations),
            checkpoint=self.checkpoints.path(steps[-1]) if steps else None,
        )


def _outcome(failure: BaseException | None) -> tuple[Outcome, int, str]:
    if failure is None:
        return "finished", 0, "the target was reached"
    if isinstance(failure, RunStopped):
        return "stopped", RunStopped.exit_code, str(failure)
    if isinstance(failure, RunInterrupted | KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted", RunInterrupted.exit_code, str(failure) or "interrupted"
    if isinstance(failure, ForgeError):
        return "failed", failure.exit_code, str(failure)
    return "failed", RunFailed.exit_code, f"{type(failure).__name__}: {failure}"
