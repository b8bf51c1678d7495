"""The hooks a plugin implements. A plugin is a module (or object) with functions of these names.

Every example below is run by the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from forge_core.contracts.config import RunConfig
    from forge_core.contracts.contributions import Command, ModelMaker, Preset, Section
    from forge_core.contracts.families import (
        AdvantageComponent,
        DatasetComponent,
        EnvironmentComponent,
        GeneratorComponent,
        LossComponent,
        OptimizerComponent,
        RecipeComponent,
        RewardComponent,
        RuntimeComponent,
        ScheduleComponent,
        TrackerComponent,
        TrainerComponent,
        TransportComponent,
    )
    from forge_core.contracts.health import Finding
    from forge_core.contracts.records import RunInfo, StepRecord, Summary
    from forge_core.contracts.runner import Runner
    from forge_core.contracts.types import Episode

PROJECT = "forge"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def forge_generators() -> Iterable[GeneratorComponent]:  # type: ignore[empty-body]
    """Contribute generators: engines that sample completions.

    Called once when an app is made. Yield one ``GeneratorComponent`` for each; import nothing
    heavy here, ``build`` is the place for that.

    .. code-block:: python

        from forge_core import GeneratorComponent, Settings, hookimpl

        class EchoSettings(Settings):
            times: int = 1

        def build_echo(settings, context):
            return ...

        @hookimpl
        def forge_generators():
            yield GeneratorComponent(
                name="echo", settings=EchoSettings, build=build_echo, summary="repeats the prompt"
            )
    """


@hookspec
def forge_trainers() -> Iterable[TrainerComponent]:  # type: ignore[empty-body]
    """Contribute trainers: holders of weights and optimizer.

    Called once when an app is made. See ``forge_core.Trainer`` for what is built.

    .. code-block:: python

        from forge_core import Settings, TrainerComponent, hookimpl

        class MySettings(Settings):
            fused: bool = True

        def build_mine(settings, context):
            from my_package.trainer import MyTrainer
            return MyTrainer(settings, context)

        @hookimpl
        def forge_trainers():
            yield TrainerComponent(
                name="mine", settings=MySettings, build=build_mine, summary="mine"
            )
    """


@hookspec
def forge_losses() -> Iterable[LossComponent]:  # type: ignore[empty-body]
    """Contribute losses: functions of logprobs that return a sum and a count.

    Called once when an app is made.

    .. code-block:: python

        from forge_core import LossComponent, LossOutput, Settings, hookimpl

        class MineSettings(Settings):
            pass

        class Mine:
            def __call__(self, logprobs, batch, outputs):
                objective = batch.field("advantages") * logprobs
                return LossOutput(sum=-objective.sum(), count=logprobs.numel())

        @hookimpl
        def forge_losses():
            yield LossComponent(
                name="mine",
                settings=MineSettings,
                build=Mine,
                needs={"advantages"},
                summary="policy gradient",
            )
    """


@hookspec
def forge_optimizers() -> Iterable[OptimizerComponent]:  # type: ignore[empty-body]
    """Contribute optimizers, chosen by ``training.optimizer``: what changes weights by gradients.

    Called once when an app is made. What is built is called with parameter groups and makes a
    ``torch.optim.Optimizer``; the trainer sets the learning rate (``forge_core.OptimizerFactory``).

    .. code-block:: python

        import functools

        from forge_core import OptimizerComponent, Settings, hookimpl

        class MineSettings(Settings):
            alpha: float = 0.75
            weight_decay: float = 0.0

        def build_mine(settings, context):
            import torch
            return functools.partial(torch.optim.ASGD, **dict(settings))

        @hookimpl
        def forge_optimizers():
            yield OptimizerComponent(
                name="mine",
                settings=MineSettings,
                build=build_mine,
                sharded=True,
                state_values=1,
                summary="averaged gradient descent",
            )
    """


@hookspec
def forge_schedules() -> Iterable[ScheduleComponent]:  # type: ignore[empty-body]
    """Contribute learning-rate schedules, chosen by ``training.schedule``.

    Called once when an app is made. What is built is a function of the step and the number of
    steps, both after warmup, that returns a factor of ``training.learning_rate``.

    .. code-block:: python

        from forge_core import ScheduleComponent, Settings, hookimpl

        class HalvesSettings(Settings):
            every: int = 100

        def build_halves(settings, context):
            return lambda step, steps: 0.5 ** (step // settings.every)

        @hookimpl
        def forge_schedules():
            yield ScheduleComponent(
                name="halves",
                settings=HalvesSettings,
                build=build_halves,
                ends=False,
                summary="half as much after each so many steps",
            )
    """


@hookspec
def forge_advantages() -> Iterable[AdvantageComponent]:  # type: ignore[empty-body]
    """Contribute advantage estimators, chosen by ``advantage``, for recipes that compare the
    episodes of a group.

    Called once when an app is made. What is built is a function of a group's rewards.

    .. code-block:: python

        from forge_core import AdvantageComponent, Settings, hookimpl

        def build_best(settings, context):
            return lambda rewards: [reward - max(rewards) for reward in rewards]

        @hookimpl
        def forge_advantages():
            yield AdvantageComponent(
                name="best",
                settings=Settings,
                build=build_best,
                summary="how far from the group's best",
            )
    """


@hookspec
def forge_rewards() -> Iterable[RewardComponent]:  # type: ignore[empty-body]
    """Contribute rewards: pure functions of a sample, run under a deadline in other processes.

    Called once when an app is made; what it yields travels to the reward processes pickled.

    .. code-block:: python

        from forge_core import RewardComponent, Settings, hookimpl

        class ShortSettings(Settings):
            limit: int = 20

        class Short:
            def __init__(self, settings):
                self.limit = settings.limit

            def __call__(self, sample):
                return float(len(sample.completion) <= self.limit)

        @hookimpl
        def forge_rewards():
            yield RewardComponent(
                name="short", settings=ShortSettings, build=Short, summary="1 if short"
            )
    """


@hookspec
def forge_environments() -> Iterable[EnvironmentComponent]:  # type: ignore[empty-body]
    """Contribute environments: what turns a task into a conversation with the policy.

    Called once when an app is made.

    .. code-block:: python

        from forge_core import EnvironmentComponent, Settings, hookimpl

        class OnceSettings(Settings):
            pass

        class OnceInteraction:
            def __init__(self, task):
                self.prompt = task.prompt

            async def respond(self, completion, finish_reason):
                return None

        class Once:
            max_turns = 1

            async def start(self, task, seed):
                return OnceInteraction(task)

        @hookimpl
        def forge_environments():
            yield EnvironmentComponent(
                name="once", settings=OnceSettings, build=Once, summary="one completion"
            )
    """


@hookspec
def forge_transports() -> Iterable[TransportComponent]:  # type: ignore[empty-body]
    """Contribute transports: ways for weights to travel from the trainer to generators.

    Called once when an app is made. See ``forge_core.Transport``.

    .. code-block:: python

        from forge_core import Settings, TransportComponent, hookimpl

        class DiskSettings(Settings):
            folder: str = "/tmp/weights"

        def build_disk(settings, context):
            return ...

        @hookimpl
        def forge_transports():
            yield TransportComponent(
                name="disk",
                settings=DiskSettings,
                build=build_disk,
                summary="files in a folder",
                reach="host",
            )
    """


@hookspec
def forge_recipes() -> Iterable[RecipeComponent]:  # type: ignore[empty-body]
    """Contribute recipes: what drives a stage of a run.

    Called once when an app is made.

    .. code-block:: python

        from forge_core import RecipeComponent, Settings, hookimpl

        class CountSettings(Settings):
            pass

        class Count:
            def plan(self, config, dataset_length):
                return 3

            async def run(self, stage):
                async for step in stage.steps():
                    step.record({"loss": 0.0})

        @hookimpl
        def forge_recipes():
            yield RecipeComponent(
                name="count", settings=CountSettings, build=Count, summary="counts to three"
            )
    """


@hookspec
def forge_runtimes() -> Iterable[RuntimeComponent]:  # type: ignore[empty-body]
    """Contribute runtimes: places where replicas live.

    Called once when an app is made. See ``forge_core.Runtime``.

    .. code-block:: python

        from forge_core import RuntimeComponent, Settings, hookimpl

        class ClusterSettings(Settings):
            hosts: int = 1

        def build_cluster(settings, context):
            return ...

        @hookimpl
        def forge_runtimes():
            yield RuntimeComponent(
                name="cluster", settings=ClusterSettings, build=build_cluster, summary="my cluster"
            )
    """


@hookspec
def forge_trackers() -> Iterable[TrackerComponent]:  # type: ignore[empty-body]
    """Contribute trackers: listeners to steps, events, episodes and the end of a run.

    Called once when an app is made. See ``forge_core.Tracker``.

    .. code-block:: python

        from forge_core import Settings, TrackerComponent, hookimpl

        class PrintSettings(Settings):
            every: int = 1

        def build_print(settings, context):
            return ...

        @hookimpl
        def forge_trackers():
            yield TrackerComponent(
                name="print", settings=PrintSettings, build=build_print, summary="prints steps"
            )
    """


@hookspec
def forge_datasets() -> Iterable[DatasetComponent]:  # type: ignore[empty-body]
    """Contribute datasets: indexable sets of tasks.

    Called once when an app is made. Any object with ``__len__`` and ``__getitem__`` will do.

    .. code-block:: python

        from forge_core import DatasetComponent, Settings, Task, hookimpl

        class SquaresSettings(Settings):
            size: int = 100

        def build_squares(settings, context):
            return [Task(str(i), f"{i}^2=", answer=str(i * i)) for i in range(settings.size)]

        @hookimpl
        def forge_datasets():
            yield DatasetComponent(
                name="squares", settings=SquaresSettings, build=build_squares, summary="squares"
            )
    """


@hookspec
def forge_presets() -> Iterable[Preset]:  # type: ignore[empty-body]
    """Contribute named configs: YAML files that the package ships.

    Called once when an app is made.

    .. code-block:: python

        from pathlib import Path
        from forge_core import Preset, hookimpl

        @hookimpl
        def forge_presets():
            path = Path(__file__).parent / "presets" / "mine.yaml"
            yield Preset(name="mine", path=path, summary="my problems")
    """


@hookspec
def forge_models() -> Iterable[ModelMaker]:  # type: ignore[empty-body]
    """Contribute models that ``forge model`` writes as folders, from what a package ships.

    Called when somebody asks for one.

    .. code-block:: python

        from forge_core import ModelMaker, hookimpl

        def make_mine(folder):
            (folder / "config.json").write_text("{}")

        @hookimpl
        def forge_models():
            yield ModelMaker(name="mine", make=make_mine, summary="my model")
    """


@hookspec
def forge_sections() -> Iterable[Section]:  # type: ignore[empty-body]
    """Contribute families of your own, each with the config section that selects its components.

    Called once when an app is made, before all hooks but ``forge_addhooks``: the hook that each
    section names is there from then on, for this plugin and for others. A plugin that works without
    the family marks its function ``@hookimpl(optionalhook=True)``.

    .. code-block:: python

        from forge_core import Component, Section, Settings, hookimpl

        class LengthSettings(Settings):
            limit: int = 20

        def build_length(settings, context):
            return lambda text: len(text) <= settings.limit

        @hookimpl
        def forge_sections():
            yield Section(name="judge", hook="forge_judges", summary="who compares answers")

        @hookimpl
        def forge_judges():
            yield Component(
                name="length", settings=LengthSettings, build=build_length, summary="short wins"
            )
    """


@hookspec
def forge_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Contribute subcommands of ``forge``.

    Called once when an app is made. The module behind ``target`` is imported when the command is
    called. ``click.pass_obj`` gives the command the app (``forge_core.Forge``); a ``ForgeError``
    becomes one line and its exit code, a returned int is the exit code.

    .. code-block:: python

        import click
        from forge_core import Command, hookimpl

        @click.command()
        @click.argument("name")
        def greet(name):
            click.echo(f"hello {name}")

        @hookimpl
        def forge_commands():
            yield Command(name="greet", target=f"{__name__}:greet", summary="Say hello.")
    """


@hookspec
def forge_runner(app: Any) -> Runner | None:
    """Contribute what carries configs out: ``Forge.run``, ``check``, ``prepare`` and ``execute``.

    Called when an app first needs it. Of several, the one that comes last is used: one handed over
    in code before one that is installed.

    Args:
        app: the ``forge_core.Forge`` to run configs for; ``app.resolve`` gives the config,
            ``app.plugins`` its components and hooks.

    .. code-block:: python

        from forge_core import UsageError, hookimpl

        class Nothing:
            def prepare(self, source, overrides, *, resume=None):
                raise UsageError("this installation runs nothing")

        @hookimpl
        def forge_runner(app):
            return Nothing()
    """


@hookspec
def forge_health_checks() -> Iterable[Finding]:  # type: ignore[empty-body]
    """Contribute rows of ``forge doctor``.

    Called each time somebody asks for the report. An exception is a row of level ``error``.

    .. code-block:: python

        import shutil
        from forge_core import Finding, hookimpl

        @hookimpl
        def forge_health_checks():
            if shutil.which("podman") is None:
                yield Finding("error", "podman", "not installed", "apt install podman")
            else:
                yield Finding("ok", "podman", "installed")
    """


@hookspec
def forge_config_resolved(config: RunConfig) -> None:
    """Look at, or veto, a resolved config before anything starts.

    Args:
        config: the whole config, parsed. Raise a ``ForgeError`` to refuse it.

    .. code-block:: python

        from forge_core import ConfigError, hookimpl

        @hookimpl
        def forge_config_resolved(config):
            if config.name == "forbidden":
                raise ConfigError("this name is reserved")
    """


@hookspec
def forge_run_started(run: RunInfo) -> None:
    """Called once the run folder exists and before the first stage.

    Args:
        run: name, folder, stages and target steps.

    .. code-block:: python

        from forge_core import hookimpl

        @hookimpl
        def forge_run_started(run):
            print(run.folder)
    """


@hookspec
def forge_episode_finished(episode: Episode, held_out: bool) -> None:
    """Called for each episode once its rewards are known; it may still be changed.

    Args:
        episode: the episode, with reward parts and total. Whatever is raised here fails the run.
        held_out: it answers a task of ``eval_dataset`` and is scored, not trained on.

    .. code-block:: python

        from forge_core import hookimpl

        @hookimpl
        def forge_episode_finished(episode, held_out):
            if not held_out:
                episode.reward = min(episode.reward, 1.0)
    """


@hookspec
def forge_step_finished(record: StepRecord) -> None:
    """Called after each step, once its record is complete and before trackers hear of it.

    Args:
        record: step, stage, metrics and timings. Raise a ``ForgeError`` to stop the run.

    .. code-block:: python

        from forge_core import RunFailed, hookimpl

        @hookimpl
        def forge_step_finished(record):
            if record.metrics.get("loss", 0.0) > 1e6:
                raise RunFailed(f"loss exploded at step {record.step}")
    """


@hookspec
def forge_checkpoint_saved(folder: Path, step: int) -> None:
    """Called once a checkpoint is complete and in its final place.

    Args:
        folder: ``checkpoints/step_N``.
        step: N.

    .. code-block:: python

        from forge_core import hookimpl

        @hookimpl
        def forge_checkpoint_saved(folder, step):
            print(step, folder)
    """


@hookspec
def forge_run_finished(summary: Summary) -> None:
    """Called when the run has ended, however it ended.

    Args:
        summary: outcome, exit code, last metrics, scores and the folder.

    .. code-block:: python

        from forge_core import hookimpl

        @hookimpl
        def forge_run_finished(summary):
            print(summary.outcome)
    """


@hookspec
def forge_addhooks(pluginmanager: Any) -> None:
    """Add hooks of your own: called before any other hook, once for each plugin.

    For a family of components with a section in the config, ``forge_sections`` is the hook.

    Args:
        pluginmanager: a ``pluggy.PluginManager``; call ``add_hookspecs`` on it.

    .. code-block:: python

        import sys
        from forge_core import hookimpl, hookspec

        @hookspec
        def forge_judges():
            "Contribute judges."

        @hookimpl
        def forge_addhooks(pluginmanager):
            pluginmanager.add_hookspecs(sys.modules[__name__])
    """


FAMILY_HOOKS: dict[str, str] = {
    "generator": "forge_generators",
    "trainer": "forge_trainers",
    "loss": "forge_losses",
    "optimizer": "forge_optimizers",
    "schedule": "forge_schedules",
    "advantage": "forge_advantages",
    "reward": "forge_rewards",
    "environment": "forge_environments",
    "transport": "forge_transports",
    "recipe": "forge_recipes",
    "runtime": "forge_runtimes",
    "tracker": "forge_trackers",
    "dataset": "forge_datasets",
}
"""Family -> the hook that contributes to it."""
