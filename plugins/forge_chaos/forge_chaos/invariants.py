"""What must hold of a run whatever was done to it. Read from its folder, not from what it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_chaos.tracker import RECORD, read_record
from forge_core import Forge, RunConfig, StageConfig
from forge_run.data.order import TaskOrder
from forge_testing.runs import checkpoints_of, lines_of


@dataclass
class Finished:
    """A run folder, read.

    Args:
        folder: of the run.
        config: resolved from it.
        summary: how it says that it ended.
        metrics: its steps.
        record: lines of ``chaos.jsonl``.
    """

    folder: Path
    config: RunConfig
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    record: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Finished:
        """Read a run's folder."""
        return cls(
            folder=folder,
            config=Forge().resolve(folder / "config.yaml"),
            summary=json.loads((folder / "summary.json").read_text(encoding="utf-8")),
            metrics=lines_of(folder / "metrics.jsonl"),
            record=read_record(folder / RECORD),
        )

    @property
    def episodes(self) -> dict[int, list[tuple[str, list[int]]]]:
        """Step -> task and policy versions of each of its episodes."""
        return {
            line["episodes_of"]: [(task, versions) for task, versions in line["episodes"]]
            for line in self.record
            if "episodes_of" in line
        }

    def steps_of(self, stage: StageConfig) -> list[dict[str, Any]]:
        """Its metrics in a stage."""
        return [line for line in self.metrics if line["stage"] == stage.name]

    @property
    def synchronous(self) -> bool:
        """No step was trained on what older weights sampled."""
        return all(line.get("staleness/max", 0) == 0 for line in self.metrics)


def faults_injected(run: Finished) -> Iterator[str]:
    """Every planned fault was injected, if the run came to its end."""
    planned = max((line["planned"] for line in run.record if "planned" in line), default=0)
    begun = {line["fault"] for line in run.record if "fault" in line}
    for line in run.record:
        if line.get("why_not"):
            yield f"fault {line['injected']} was not injected: {line['why_not']}"
    if run.summary["outcome"] == "finished" and len(begun) < planned:
        yield f"{len(begun)} of {planned} faults were injected"


def metrics_complete(run: Finished) -> Iterator[str]:
    """One line for each step, in order; ended at the step that the summary says."""
    steps = [line["step"] for line in run.metrics]
    if steps != list(range(1, len(steps) + 1)):
        yield f"metrics.jsonl has the steps {steps[:20]}"
    if run.summary["steps"] != len(steps):
        yield f"the summary speaks of {run.summary['steps']} steps, metrics.jsonl has {len(steps)}"


def episodes_once(run: Finished) -> Iterator[str]:
    """Each step has each of its groups once, with as many episodes as a group has."""
    told = Counter(line["episodes_of"] for line in run.record if "episodes_of" in line)
    for step, count in told.items():
        if count > 1:
            yield f"the episodes of step {step} were reported {count} times"
    for stage in run.config.stages:
        size = _group_size(stage)
        for line in run.steps_of(stage):
            tasks = [task for task, _ in run.episodes.get(line["step"], [])]
            groups = [tasks[at : at + size] for at in range(0, len(tasks), size)]
            if any(len(group) < size or len(set(group)) > 1 for group in groups):
                yield f"step {line['step']} has the episodes {dict(Counter(tasks))}"
            if tasks and len(tasks) != stage.training.batch_size:
                yield f"step {line['step']} has {len(tasks)} episodes"


def _group_size(stage: StageConfig) -> int:
    return int(getattr(stage.recipe.settings, "group_size", 1))


def order_of_tasks(run: Finished) -> Iterator[str]:
    """The tasks of a synchronous run are those of the seed's order, without a gap."""
    for stage in run.config.stages:
        lines = [line for line in run.steps_of(stage) if line["step"] in run.episodes]
        dropped = any(line.get("prompts/dropped") for line in lines)
        if not lines or stage.dataset is None or dropped or not run.synchronous:
            continue
        context = stage.early_context()
        dataset = stage.dataset.build(context)
        order = TaskOrder(len(dataset), context.seed)
        size = _group_size(stage)
        for line in lines:
            took = [task for task, _ in run.episodes[line["step"]][::size]]
            expected = [dataset[index].id for index in order.take(len(took))]
            if took != expected:
                yield f"step {line['step']} took the tasks {took[:5]}..., not {expected[:5]}..."


def versions_true(run: Finished) -> Iterator[str]:
    """No token is from the future, none is older than allowed, and versions only grow."""
    last: dict[str, int] = {}
    for line in run.metrics:
        versions = sorted(
            {version for _, each in run.episodes.get(line["step"], []) for version in each}
        )
        if not versions:
            continue
        stage, before = line["stage"], last.get(line["stage"], 0)
        if versions[-1] > line["stage_step"]:
            yield f"step {line['step']} has tokens of version {versions[-1]}, not published yet"
        if run.synchronous and len(versions) > 1:
            yield f"step {line['step']} was sampled by versions {versions}"
        if versions[-1] < before:
            yield f"step {line['step']} was sampled by version {versions[-1]} after {before}"
        last[stage] = versions[-1]


def checkpoints_whole(run: Finished) -> Iterator[str]:
    """Every checkpoint is proved by its manifest, but for those that were damaged on purpose."""
    damaged = [line["did"] for line in run.record if "flipped" in line.get("did", "")]
    for folder, wrong in checkpoints_of(run.folder).items():
        hurt = any(f"{folder}/" in did for did in damaged)
        if wrong and not hurt:
            yield f"checkpoint {folder.name}: {wrong}"
        elif hurt and not wrong:
            yield f"checkpoint {folder.name} was damaged, and its manifest does not show it"


INVARIANTS: tuple[Callable[[Finished], Iterator[str]], ...] = (
    faults_injected, metrics_complete, episodes_once, order_of_tasks, versions_true,
    checkpoints_whole,
)  # fmt: skip


def same_as(run: Finished, undisturbed: Finished, tolerance: float) -> Iterator[str]:
    """Metrics and the last weights are those of the run that nothing was done to.

    Args:
        run: the disturbed one.
        undisturbed: the other.
        tolerance: by which a weight or a metric may differ; 0: bit for bit.
    """
    for ours, theirs in zip(run.metrics, undisturbed.metrics, strict=False):
        for name in sorted((ours.keys() | theirs.keys()) - {"timing"}):
            if not _close(ours.get(name), theirs.get(name), tolerance):
                yield f"step {ours['step']}: {name} is {ours.get(name)}, not {theirs.get(name)}"
    if len(run.metrics) != len(undisturbed.metrics):
        yield f"{len(run.metrics)} steps, not {len(undisturbed.metrics)}"
    yield from _weights_differ(_last(run), _last(undisturbed), tolerance)


def _last(run: Finished) -> Path:
    return list(checkpoints_of(run.folder))[-1]


def _close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int) and tolerance:
        return abs(one - other) <= tolerance * max(1.0, abs(one), abs(other))
    return bool(one == other)


def _weights_differ(ours: Path, theirs: Path, tolerance: float) -> Iterator[str]:
    from safetensors.torch import load_file

    for file in sorted(theirs.glob("*.safetensors")):
        mine, other = load_file(ours / file.name), load_file(file)
        for name, tensor in other.items():
            gap = (mine[name].double() - tensor.double()).abs().max().item()
            if not gap <= tolerance:
                yield f"weight {name} differs by {gap:.3g}"


def violations(folder: Path, undisturbed: Path | None = None, tolerance: float = 0.0) -> list[str]:
    """What does not hold of a run, in words; empty if everything does.

    Args:
        folder: of the run.
        undisturbed: folder of the same run without faults; compared where both are synchronous.
        tolerance: see ``same_as``.
    """
    run = Finished.read(folder)
    found = [f"{check.__name__}: {line}" for check in INVARIANTS for line in check(run)]
    if undisturbed is not None:
        other = Finished.read(undisturbed)
        if run.synchronous and other.synchronous:
            found += [f"same_as: {line}" for line in same_as(run, other, tolerance)]
    return found
