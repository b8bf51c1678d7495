"""``Forge``: plugins, config and runs behind one object, from code as from the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from forge_core.contracts.config import RunConfig
    from forge_core.contracts.records import Summary
    from forge_core.plugins.manager import PluginManager
    from forge_core.run.session import RunSession

T = TypeVar("T")
Source = str | Path | Mapping[str, Any] | None
Overrides = Sequence[str] | Mapping[str, Any]


class Forge:
    """An app: a set of plugins and what can be done with them. Nothing is shared between two.

    Args:
        plugins: modules or objects with hooks, beside those that are installed.
        discover: look for installed plugins.
        disabled: plugins to leave out, by name.
    """

    def __init__(
        self,
        plugins: Sequence[object] = (),
        *,
        discover: bool = True,
        disabled: Collection[str] = (),
    ) -> None:
        self._given = tuple(plugins)
        self._discover = discover
        self._disabled = tuple(disabled)

    @cached_property
    def plugins(self) -> PluginManager:
        """Found and loaded when they are first asked for, so that ``--help`` costs nothing."""
        from forge_core.plugins.manager import PluginManager

        return PluginManager(self._given, discover=self._discover, disabled=self._disabled)

    def resolve(self, source: Source = None, overrides: Overrides = ()) -> RunConfig:
        """The whole config: defaults, preset or file, environment and overrides, parsed.

        Args:
            source: preset name, path of a YAML file, or a mapping.
            overrides: ``["training.steps=5"]`` or ``{"training": {"steps": 5}}``.

        Raises:
            ConfigError: with one line for each problem.
        """
        from forge_core.config.resolve import resolve

        return resolve(self.plugins.catalog, source, overrides)

    def loss_overrides(
        self, source: Source, overrides: Sequence[str], loss: str, *, resume: Path | None = None
    ) -> list[str]:
        """What ``--loss NAME`` stands for: ``loss.use=NAME`` in each stage that can use it.

        Raises:
            UsageError: no stage can; says what the loss needs and what the recipe gives.
        """
        from forge_core.run.preflight import usable_loss

        source = self._source(source, resume)
        stages = self.resolve(source, overrides).stages
        if len(stages) == 1:
            return [f"loss.use={loss}"]
        changes = [f"stages.{stage.name}.loss.use={loss}" for stage in stages]
        problems = [
            usable_loss(self.resolve(source, [change, *overrides]).stages[index])
            for index, change in enumerate(changes)
        ]
        usable = [change for change, problem in zip(changes, problems, strict=True) if not problem]
        for problem in problems:
            if problem is not None and not usable:
                raise problem
        return usable

    def check(
        self,
        source: Source = None,
        overrides: Overrides = (),
        *,
        resume: Path | None = None,
        rewards: Sequence[object] = (),
    ) -> tuple[RunConfig, list[int]]:
        """Everything that can be checked before a start: the config and each stage's steps."""
        session = self.prepare(source, overrides, resume=resume, rewards=rewards)
        return session.config, session.total_steps

    def run(
        self,
        source: Source = None,
        overrides: Overrides = (),
        *,
        resume: Path | None = None,
        rewards: Sequence[object] = (),
    ) -> Summary:
        """Run a config to its target.

        Args:
            source: preset name, path of a YAML file, or a mapping; None with ``resume``: the run's.
            overrides: on top of the source.
            resume: run folder to go on with; default ``checkpointing.resume``.
            rewards: functions, each a part of the reward by its name, beside those of the config.

        Raises:
            ForgeError: a child of it, for everything that is not success.
        """
        return self.execute(self.prepare(source, overrides, resume=resume, rewards=rewards))

    def prepare(
        self,
        source: Source = None,
        overrides: Overrides = (),
        *,
        resume: Path | None = None,
        rewards: Sequence[object] = (),
    ) -> RunSession:
        """A run that is checked as far as can be, and not started.

        Args:
            source, overrides, resume, rewards: as of ``run``.

        Raises:
            UsageError: something is wrong with the config, the data, or the run to go on with.
        """
        from forge_core.run.code_files import check_files
        from forge_core.run.folder import RunFolder
        from forge_core.run.interrupt import interrupts_marked
        from forge_core.run.session import RunSession

        if resume is not None:
            check_files(RunFolder.open(resume).path)
        for reward in rewards:
            reference = self.plugins.catalog.hand_over("reward", reward)
            key = f"rewards.{reference.partition(':')[2]}.use"
            if isinstance(overrides, Mapping):
                overrides = {key: reference, **overrides}
            else:
                overrides = [f"{key}={reference}", *overrides]
        config = self.resolve(self._source(source, resume), overrides)
        with interrupts_marked():
            return RunSession(config, self.plugins, resume=resume or config.checkpointing.resume)

    def execute(self, session: RunSession) -> Summary:
        """Start a run that is prepared, and stay until its end.

        Raises:
            ForgeError: as ``run``.
        """
        return _run_to_end(session.run(), session.broken)

    def _source(self, source: Source, resume: Path | None) -> Source:
        """A run that goes on does so with its own config, unless another is named."""
        from forge_core.run.folder import RunFolder

        return RunFolder.open(resume).config if source is None and resume is not None else source


def _run_to_end(
    work: Coroutine[Any, Any, T], broken: Callable[[BaseException], None] | None = None
) -> T:
    """``asyncio.run``, also where a loop is running already (a notebook): then in a thread.

    Args:
        work: what to do.
        broken: called with the exception by which a task in the background ended the event loop;
            then the work is cancelled. None: the exception is raised.
    """
    import asyncio
    import threading

    try:
        asyncio.get_running_loop()
        has_loop = True
    except RuntimeError:
        has_loop = False
    if not has_loop:  # outside of the handler, so that no failure is shown as "during handling of"
        return _in_loop(work, broken)
    result: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            result.append(_in_loop(work, broken))
        except BaseException as error:  # raised again in the calling thread
            failure.append(error)

    thread = threading.Thread(target=target, name="forge-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _in_loop(work: Coroutine[Any, Any, T], broken: Callable[[BaseException], None] | None) -> T:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from forge_core.contracts.blame import is_foreign

    tasks: list[asyncio.Task[Any]] = []

    async def whole() -> T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            return await work
        finally:
            # The end of the loop waits for the threads of its executor, some of which may hang.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    with asyncio.Runner() as runner:
        try:
            return runner.run(whole())
        except (SystemExit, KeyboardInterrupt) as error:
            if broken is None or not tasks or tasks[0].done() or not is_foreign(error):
                raise
            broken(error)
        (task,) = tasks
        task.cancel()
        ended: T = runner.get_loop().run_until_complete(task)
        return ended
