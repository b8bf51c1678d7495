"""One execution of a config, from the checks before it to the summary after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import (
    DataError,
    Evaluation,
    ForgeError,
    Outcome,
    RunFailed,
    RunInfo,
    RunInterrupted,
    RunStopped,
    StageInfo,
    StepRecord,
    Summary,
    UsageError,
    WeightsNotFinite,
    WriterLost,
    derive_seed,
)
from forge_core.config.in_force import lock_trouble
from forge_core.contracts.blame import blaming, blaming_plugin, described, is_foreign, with_notes
from forge_core.manifest import verify, verify_model
from forge_local.devices import check_device
from forge_models.folder import check_init, check_model, check_named_model
from forge_run import interrupt
from forge_run.answers import steps_planned
from forge_run.cautions import cautions
from forge_run.checkpoint import DAMAGED, CheckpointStore, RunState
from forge_run.dataset import GuardedDataset
from forge_run.event_loop import run_to_end
from forge_run.events import EventBus
from forge_run.folder import SUMMARY, RunFolder
from forge_run.interrupt import StopRequest
from forge_run.preflight import (
    check_components,
    check_loss,
    check_reference,
    check_requirements,
    check_runtime,
    check_sampler,
    check_services,
)
from forge_run.progress import Progress
from forge_run.reserve import Reserve
from forge_run.resume import Resumption, finished_stages, last_known_state, resumption
from forge_run.shipped_models import model_makers
from forge_run.tasks import check_tasks
from forge_run.trackers.jsonl import troubles
from forge_run.trackers.lines import METRICS, JsonLines
from forge_run.transport_check import check_transport
from forge_run.unused import check_unused, unused_keys
from forge_run.writer import Writer, check_free
from forge_services.watchdog import Watchdog, caller

if TYPE_CHECKING:
    from forge_core import (
        BuildContext,
        Dataset,
        Episode,
        ModelSection,
        Recipe,
        RunConfig,
        Runtime,
        Selection,
        StageConfig,
        Tracker,
        Transport,
    )
    from forge_core.plugins.manager import PluginManager
    from forge_run.stage import Stage

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
        self._plugins = plugins
        self._datasets: dict[tuple[str, str], GuardedDataset] = {}
        self.watchdog: Watchdog | None = None
        self._given = config
        self._presets = config.presets()
        self.resumption: Resumption | None = None
        """What goes on, if anything does."""
        if resume is not None:
            folder = RunFolder.open(resume)
            check_free(folder.path)
            store = CheckpointStore(folder.checkpoints, keep=1)
            self.resumption = self._resumption(folder, store, last_known_state(store))
            config = self.resumption.config
            self._presets |= folder.presets()
        self.config = config
        self._transports: dict[str, tuple[Selection[Transport], Transport]] = {}
        """By channel."""
        self._models: dict[str, Path] = {}
        """Folders of ``models:``, once the run has started."""
        self.progress = Progress()
        self.was_finished = False
        """Everything was done before this session; nothing was changed."""
        self._admitted = False
        self.last_record: StepRecord | None = None
        self._recipes: list[Recipe] = []
        self.total_steps: list[int] = []
        self._breach: RunFailed | None = None
        self._stage: Stage | None = None
        check_model(config.model, model_makers(plugins))
        for name, model in config.models.items():
            check_named_model(name, model, model_makers(plugins))
        check_unused(config)
        for tracker in config.trackers.values():
            tracker.check(config.stages[0].early_context())
        for stage in config.stages:
            self._check(stage)
        for plugin, hook in self._hooks("forge_config_resolved"):
            with blaming_plugin(plugin, "forge_config_resolved"):
                hook(config=config)
        if self.resumption is None:
            RunFolder.check_output(config.checkpointing.output_dir)
        else:
            self.resumption, self.total_steps = self.resumption.settled(self.total_steps)
            self.config = self.resumption.config

    def _hooks(self, hook: str) -> list[tuple[str, Callable[..., object]]]:
        """A lifecycle hook of the plugins that act in this run."""
        return self._plugins.observers(hook, self.config, self._presets)

    def _resumption(
        self, folder: RunFolder, store: CheckpointStore, state: RunState | None
    ) -> Resumption:
        catalog = self._plugins.catalog
        return resumption(folder, self._given, state, finished_stages(store), catalog=catalog)

    def _check(self, stage: StageConfig) -> None:
        context = stage.early_context()
        with blaming(stage.recipe, "build"):
            recipe = stage.recipe.build(context)
        check_requirements(stage)
        check_services(stage)
        if stage.loss is not None:
            with blaming(stage.loss, "build"):
                stage.loss.build(context)
        check_loss(stage)
        check_reference(stage)
        check_components(stage)
        check_runtime(stage, self.config.runtime)
        check_sampler(stage)
        check_transport(stage, self.config.runtime, self._plugins.catalog)
        check_device(stage, self.config.runtime)
        for section in ("dataset", "eval_dataset"):
            if getattr(stage, section) is not None:
                check_tasks(stage, section, self.dataset(stage, section))
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

    def waiting(self, what: str, detail: str = "") -> AbstractContextManager[None]:
        """A wait of the run's for something; the watchdog is there once the run has started."""
        if self.watchdog is None:
            return nullcontext()
        return self.watchdog.waiting(caller.get(), what, detail)

    def _dropped(self, message: str) -> None:
        if self.watchdog is not None:
            self.events.event("warning", message)

    def dataset(self, stage: StageConfig, section: str) -> GuardedDataset:
        """The built dataset of a stage's section; built once.

        Raises:
            DataError: it is empty.
            PluginError: it cannot be built, or its first item is no task.
        """
        key = (stage.name, section)
        if key not in self._datasets:
            selection = getattr(stage, section)
            with blaming(selection, "build"):
                dataset = selection.build(stage.early_context())
            keys = stage.dataset_keys if section == "dataset" else stage.eval_dataset_keys
            guarded = GuardedDataset(
                selection,
                section,
                keys,
                dataset,
                waiting=self.waiting,
                on_drop=self._dropped,
            )
            if not len(guarded):
                raise DataError(f"{section}: dataset of stage {stage.name!r} is empty")
            guarded[0]
            self._datasets[key] = guarded
        return self._datasets[key]

    def transport(self, stage: StageConfig, context: BuildContext) -> Transport:
        """The controller's own end of a channel of a stage's transport."""
        if context.channel not in self._transports:
            assert stage.transport is not None
            with blaming(stage.transport, "build", RunFailed):
                built = stage.transport.build(context)
            self._transports[context.channel] = (stage.transport, built)
        return self._transports[context.channel][1]

    def model(self, name: str, otherwise: ModelSection) -> ModelSection:
        """A model of ``models:`` as a section that says where its folder is.

        Args:
            name: of the model; empty: the other one.
            otherwise: the model that the stage starts from.
        """
        if not name:
            return otherwise
        return self.config.models[name].model_copy(
            update={"path": self._models[name], "init": None}
        )

    def steps_before(self, stage: str) -> int:
        """Steps of all stages before one."""
        index = [config.name for config in self.config.stages].index(stage)
        return sum(self.total_steps[:index])

    def stepped(self, record: StepRecord, episodes: Sequence[Episode]) -> None:
        """Keep the record of a step for the summary and report it.

        Raises:
            WriterLost: another process has taken over the run folder.
        """
        self.writer.check()
        self._admit()
        self.last_record = record
        self.progress.metrics = record.metrics
        self.events.step(record, episodes)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep a score for the summary and report it.

        Raises:
            WriterLost: another process has taken over the run folder.
        """
        self.writer.check()
        self.progress.add(evaluation)
        self.events.event(
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

    def execute(self) -> Summary:
        """``run``, in an event loop of its own."""
        return run_to_end(self.run(), self.broken)

    async def run(self) -> Summary:
        """Do every stage and say how it ended.

        Raises:
            RunFailed: something broke; trackers were informed first.
            UsageError: the config or the data are wrong, and nothing was trained or scored; a new
                run's folder is removed. Or another process writes the run folder.
            WriterLost: another process has taken over the run folder.
            RunStopped: a stage ended short of its target.
            RunInterrupted: a signal asked for it; a checkpoint was written.
        """
        self.progress = Progress()
        if self.config.model.init is not None:
            check_init(self.config.model.init)
        for model in self.config.models.values():
            if model.init is not None:
                check_init(model.init)
        context = self.config.stages[0].early_context()
        trackers = {}
        for name, selection in self.config.trackers.items():
            with blaming(selection, "build"):
                trackers[name] = selection.build(context)
        if self.resumption is not None:
            self.folder = self.resumption.folder
        else:
            checkpointing = self.config.checkpointing
            self.folder = RunFolder.create(checkpointing.output_dir, self.config.name)
        with Writer(self.folder.path) as self.writer:
            return await self._run(context, trackers)

    async def _run(self, context: BuildContext, trackers: Mapping[str, Tracker]) -> Summary:
        """The run, once its folder is this process's to write."""
        self.checkpoints = CheckpointStore(
            self.folder.checkpoints, keep=self.config.checkpointing.keep
        )
        state = self._newest_state()
        warnings: list[str] = []
        if self.resumption is None:
            self.folder.start(self.config, self._plugins)
        else:
            earlier, warnings = self._go_on(state)
            if earlier is not None:
                return earlier
        self.events = EventBus(trackers, self._hooks)
        self.watchdog = Watchdog(self.events.event, threshold=WATCHDOG_SECONDS)
        self.events.listeners.append(self.watchdog.heard)
        self.events.observers.waiting = self.watchdog.waiting
        self._loop = asyncio.get_running_loop()
        self.stop = StopRequest(self._stop_requested)
        failure: BaseException | None = None
        reserve = Reserve(self.folder.path)
        try:
            with self.stop, self.watchdog:
                warnings += troubles(self.folder.path, state.step if state else 0)
                self.events.start(self._info(state))
                self._set_damaged_aside(state)
                for line in [*warnings, *unused_keys(self.config), *cautions(self.config)]:
                    self.events.event("warning", line)
                with blaming(self.config.runtime, "build"):
                    self.runtime: Runtime = self.config.runtime.build(context)
                try:
                    await self._stages(state)
                finally:
                    try:
                        for selection, transport in self._transports.values():
                            with blaming(selection, "close", RunFailed):
                                await transport.close()
                    finally:
                        await self.runtime.close()
                self.writer.check()
                self._admit()
        except BaseException as error:
            failure = self._failure(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            reserve.release()
            lost = isinstance(failure, WriterLost)
            summary = self._summary(failure)
            if not lost:
                self._write_summary(summary)
            try:
                self.events.finish(summary)
                if len(self.events.warnings) > len(summary.warnings):
                    summary = replace(summary, warnings=tuple(self.events.warnings))
                    if not lost:
                        self._write_summary(summary)
            finally:
                if (
                    summary.exit_code == UsageError.exit_code
                    and self.resumption is None
                    and not lost
                ):
                    self.folder.remove()
        return summary

    def _go_on(self, state: RunState | None) -> tuple[Summary | None, list[str]]:
        """Take up the run from a checkpoint.

        Returns:
            how it ended, if there is nothing left to do; and warnings.

        Raises:
            UsageError: it cannot go on with this config, or changed since it was checked.
        """
        folder = self.folder
        now, totals = self._resumption(folder, self.checkpoints, state).settled(self.total_steps)
        if now.config.tree != self.config.tree or totals != self.total_steps:
            raise UsageError(f"{folder.path} has changed since it was checked; try again")
        self.resumption, warnings = now, list(now.warnings)
        if (trouble := lock_trouble(folder.path)) is not None:
            warnings.append(trouble)
        try:
            earlier = folder.read_summary()
        except DataError as error:
            earlier = None
            warnings.append(f"{error}: left out; scores since the last checkpoint are not known")
        self.progress = Progress(state, earlier)
        last = self.config.stages[-1]
        self.was_finished = (
            earlier is not None
            and earlier.outcome == "finished"
            and self._is_done(last, sum(totals), state)
        )
        if self.was_finished:
            return earlier, warnings
        if state is not None:
            copy = self.checkpoints.path(state.step) / METRICS
            warnings += JsonLines(folder.path / METRICS, state.step).put_back(copy)
        return None, warnings

    def _is_done(self, stage: StageConfig, step: int, state: RunState | None) -> bool:
        """Whether a stage that ends with a step of the run was trained and scored."""
        if state is None or state.step < step:
            return False
        if state.step > step:
            return True
        return state.stage_done and (
            not stage.evaluates() or self.progress.has_final(stage.name, step)
        )

    def _admit(self) -> None:
        """Record the config that a resumed run goes on with, now that a step has worked with it."""
        if self._admitted or self.resumption is None:
            return
        self._admitted = True
        record = self.folder.admit(self.config, self._plugins)
        changes = self.resumption.changes()
        if changes:
            self.events.event(
                "config_changed",
                f"config changed: {'; '.join(changes)} ({record.name}. resume)",
                {"changes": changes, "config": str(record / "config.yaml")},
            )

    def _failure(self, error: BaseException) -> BaseException:
        """What the run raises for an error: a ``ForgeError`` that says where it came from.

        What is wrong with the config or the data is a ``UsageError`` (exit code 2) only as long as
        nothing was trained or scored; later the run has failed (1).
        """
        try:
            self.writer.check()
        except WriterLost as lost:  # the new writer may well have caused the error
            return lost
        if isinstance(error, UsageError):
            begun = self.last_record or self.progress.evaluations or self.checkpoints.steps()
            return RunFailed(str(error), log_tail=error.log_tail) if begun else error
        if isinstance(error, ForgeError):
            return error
        if not isinstance(error, Exception) and not is_foreign(error):
            return self._breach or error
        step = self.last_record.step if self.last_record else 0
        return RunFailed(with_notes(error), component=f"{caller.get()}, after step {step}")

    def broken(self, error: BaseException) -> None:
        """A task in the background has ended the event loop, with ``sys.exit`` for example: the
        run has failed, and the cancellation that follows is no interruption."""
        self._breach = RunFailed(f"{described(error)} in a task in the background")

    async def _stages(self, state: RunState | None) -> None:
        from forge_run.model import first_model
        from forge_run.stage import Stage

        random.seed(self.config.stages[0].training.seed)
        seed = self.config.stages[0].training.seed
        model = first_model(self.config.model, self.folder.model, seed)
        for name, section in self.config.models.items():
            place = self.folder.models / name
            own = derive_seed(seed, "model", name)
            self._models[name] = await asyncio.to_thread(first_model, section, place, own)
            await asyncio.to_thread(verify_model, self._models[name])
        done = 0
        for index, (config, recipe) in enumerate(
            zip(self.config.stages, self._recipes, strict=True)
        ):
            total = self.total_steps[index]
            done += total
            if self._is_done(config, done, state):
                model = self.checkpoints.path(done)
                continue
            if model.is_relative_to(self.folder.path):  # made by this run, so it has a manifest
                await asyncio.to_thread(verify, model, model_only=True)
            else:
                await asyncio.to_thread(verify_model, model)
            restored = state if state is not None and state.stage == config.name else None
            stage = Stage(self, config, model=model, total_steps=total, restored=restored)
            self.events.event(
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
                self._stage = stage
                await stage.drive(recipe)
            except WeightsNotFinite as error:
                raise RunFailed(
                    f"stage {config.name}: {error}; these weights were neither saved nor published "
                    f"({self._last_good()})"
                ) from error
            finally:
                await stage.close()
            model = self.checkpoints.path(done)

    def _newest_state(self) -> RunState | None:
        step, self._damaged = self.checkpoints.newest_whole()
        if step is None:
            return None
        return self.checkpoints.state(step)

    def _last_good(self) -> str:
        steps = self.checkpoints.steps()
        if not steps:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.checkpoints.path(steps[-1])}"

    def _set_damaged_aside(self, state: RunState | None) -> None:
        for step, damage in self._damaged.items():
            self.checkpoints.set_aside(step)
            assert state is not None  # else newest_whole has raised
            self.events.event(
                "warning",
                f"{damage}; going on from step {state.step} instead (the damaged checkpoint is now "
                f"{DAMAGED}step_{step})",
            )

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
            evaluations=self.progress.evaluations,
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
        again = "" if signal_name == "SIGHUP" else "; once more to stop at once"
        self._loop.call_soon_threadsafe(self._stop_stage)
        self.events.event(
            "stopping",
            f"{signal_name}: stopping after this step, or without it if it takes more than "
            f"{interrupt.GRACE:g} s{again}",
        )

    def _stop_stage(self) -> None:
        if self._stage is not None:
            self._stage.stop_soon()

    def _write_summary(self, summary: Summary) -> None:
        """How the run ended stays what it is, also where that cannot be written."""
        try:
            self.folder.write_summary(summary)
        except OSError as error:
            path = self.folder.path / SUMMARY
            self.events.event("warning", f"cannot write {path}: {error.strerror}")

    def _summary(self, failure: BaseException | None) -> Summary:
        outcome, exit_code, message = _outcome(failure)
        if outcome == "failed" and failure is not None and not isinstance(failure, WriterLost):
            data = {}
            with suppress(OSError):  # the error itself is what counts
                data["traceback"] = str(self.folder.write_error(failure))
            self.events.event("failed", message, data)
        steps = self.checkpoints.steps()
        record = self.last_record
        return Summary(
            outcome=outcome,
            exit_code=exit_code,
            message=message,
            folder=self.folder.path,
            steps=record.step if record else (steps[-1] if steps else 0),
            seconds=self.progress.seconds,
            metrics=dict(self.progress.metrics),
            evaluations=self.progress.evaluations,
            checkpoint=self.checkpoints.path(steps[-1]) if steps else None,
            warnings=tuple(self.events.warnings),
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
