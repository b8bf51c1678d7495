"""``Forge``: plugins, config and runs behind one object, from code as from the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from forge_core.contracts.config import RunConfig
    from forge_core.contracts.records import Summary
    from forge_core.contracts.runner import PreparedRun, Runner
    from forge_core.plugins.manager import PluginManager

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

    def check(
        self,
        source: Source = None,
        overrides: Overrides = (),
        *,
        resume: Path | None = None,
        rewards: Sequence[object] = (),
    ) -> tuple[RunConfig, list[int]]:
        """Everything that can be checked before a start: the config and each stage's steps."""
        prepared = self.prepare(source, overrides, resume=resume, rewards=rewards)
        return prepared.config, list(prepared.total_steps)

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
    ) -> PreparedRun:
        """A run that is checked as far as can be, and not started.

        Args:
            source, overrides, resume, rewards: as of ``run``.

        Raises:
            UsageError: something is wrong with the config, the data, or the run to go on with.
        """
        for reward in rewards:
            reference = self.plugins.catalog.hand_over("reward", reward)
            key = f"rewards.{reference.partition(':')[2]}.use"
            if isinstance(overrides, Mapping):
                overrides = {key: reference, **overrides}
            else:
                overrides = [f"{key}={reference}", *overrides]
        return self._runner.prepare(source, overrides, resume=resume)

    def execute(self, run: PreparedRun) -> Summary:
        """Start a run that is prepared, and stay until its end.

        Raises:
            ForgeError: as ``run``.
        """
        return run.execute()

    @cached_property
    def _runner(self) -> Runner:
        from forge_core.contracts.blame import blaming_plugin
        from forge_core.contracts.errors import PluginError

        for plugin, hook in reversed(self.plugins.implementations("forge_runner")):
            with blaming_plugin(plugin, "forge_runner"):
                runner = hook(app=self)
            if runner is not None:
                return cast("Runner", runner)
        unusable = "; ".join(
            f"plugin {plugin} is {plugin.status}: {plugin.cause}"
            for plugin in self.plugins.plugins()
            if plugin.status != "ok"
        )
        raise PluginError(
            "no plugin that can be used brings a runner (hook forge_runner), so configs can be "
            f"resolved and not run{f' ({unusable})' if unusable else ''}"
        )
