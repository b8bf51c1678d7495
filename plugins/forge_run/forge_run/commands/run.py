"""``forge run``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forge_core import UsageError
from forge_core.cli.arguments import split_arguments
from forge_core.streams import lasting

if TYPE_CHECKING:
    from forge_core import Forge
    from forge_run.session import RunSession

COMPONENT_FLAGS = ("generator", "trainer", "transport", "runtime")


@click.command()
@click.argument("arguments", nargs=-1, metavar="[PRESET-or-FILE] [KEY=VALUE ...]")
@click.option("--generator", metavar="NAME", help="Short for generator.use=NAME.")
@click.option("--trainer", metavar="NAME", help="Short for trainer.use=NAME.")
@click.option(
    "--loss", metavar="NAME", help="Short for loss.use=NAME, in the stages whose recipe can use it."
)
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="NAME",
    help="A part of the reward: short for rewards.NAME.use=NAME. Can be given several times.",
)
@click.option("--transport", metavar="NAME", help="Short for transport.use=NAME.")
@click.option("--runtime", metavar="NAME", help="Short for runtime.use=NAME.")
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), help="Short for trainer.procs=K: trainer ranks."
)
@click.option("--dry-run", is_flag=True, help="Check everything that can be, start nothing.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on with that run folder; its own config unless another is named.",
)
@click.pass_obj
def run(
    app: Forge,
    /,
    arguments: tuple[str, ...],
    loss: str | None,
    rewards: tuple[str, ...],
    nproc_per_node: int | None,
    dry_run: bool,
    resume: Path | None,
    **components: str | None,
) -> int:
    """Run a preset or a config file, with KEY=VALUE on top.

    \b
    forge run my.yaml
    forge run my.yaml training.learning_rate=3e-4 --loss mine
    forge run my.yaml --reward my_reward.py:brevity
    forge run --resume runs/my-20260101-120000

    Exit codes: 0 the target was reached, 1 the run failed, 2 usage or config, 3 stopped short of
    the target, 130 interrupted after a checkpoint.
    """
    from forge_run.runner import FolderRunner

    source, overrides = split_arguments(arguments)
    if source is None and resume is None:
        raise UsageError("forge run: name a preset or a config file (forge presets lists presets)")
    flags = [f"{name}.use={components[name]}" for name in COMPONENT_FLAGS if components[name]]
    flags += [f"rewards.{_part(name)}.use={name}" for name in rewards]
    if nproc_per_node is not None:
        flags.append(f"trainer.procs={nproc_per_node}")
    overrides = [*flags, *overrides]
    runner = FolderRunner(app)
    if loss is not None:
        overrides = [*runner.loss_overrides(source, overrides, loss, resume=resume), *overrides]
    session = runner.prepare(source, overrides, resume=resume)
    if dry_run:
        _show_plan(session)
        return 0
    with lasting():
        summary = session.execute()
    if session.was_finished:
        click.echo(
            f"{summary.folder}: the target was reached before, at step {summary.steps}; nothing is "
            "left to do (training.steps=N gives it a further target)"
        )
    return summary.exit_code


def _part(reward: str) -> str:
    """What a part of the reward is called that ``--reward`` adds."""
    return reward.rpartition(":")[2]


def _show_plan(session: RunSession) -> None:
    from forge_run.cautions import cautions
    from forge_run.unused import unused_keys

    config, totals = session.config, session.total_steps
    click.echo(f"run {config.name}: nothing is wrong; nothing was started")
    click.echo(f"  runtime {config.runtime.name}, trackers {', '.join(config.trackers) or 'none'}")
    for stage, steps in zip(config.stages, totals, strict=True):
        parts = {
            section: selection.name
            for section in ("generator", "trainer", "loss", "transport", "dataset", "eval_dataset")
            if (selection := getattr(stage, section)) is not None
        }
        rewards = {"rewards": "+".join(stage.rewards)} if stage.rewards else {}
        named = ", ".join(f"{section} {name}" for section, name in {**parts, **rewards}.items())
        click.echo(f"  stage {stage.name}: recipe {stage.recipe.name}, {steps} steps, {named}")
    goes_on = session.resumption
    if goes_on is not None:
        step = goes_on.state.step if goes_on.state else 0
        click.echo(f"  goes on from step {step} of {sum(totals)}")
        for line in goes_on.changes():
            click.echo(f"  changed: {line}")
    for line in [*(goes_on.warnings if goes_on else ()), *unused_keys(config), *cautions(config)]:
        click.echo(f"  warning: {line}")
