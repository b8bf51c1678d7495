"""Recipe ``grpo`` with ``max_staleness`` above 0: sampling while it trains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    Completion,
    Episode,
    Forge,
    RunFailed,
    RunStopped,
    Sampling,
    Task,
    hookimpl,
)
from forge_rollouts.saved import from_json
from forge_run.data.order import TaskOrder
from forge_testing.context import component
from forge_testing.runs import StopAt, lines_of, printing_to, small_config
from forge_torch.generator.generator import TorchGenerator
from forge_torch.settings import TorchGeneratorSettings, TorchTrainerSettings
from forge_torch.trainer.trainer import TorchTrainer

STEPS = 5


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """Five steps of four groups, every episode written down."""
    return small_config(
        rewards={"sevens": {}},
        training={"steps": STEPS, "batch_size": 32, "learning_rate": 0.003},
        checkpointing={"output_dir": str(tmp_path / "runs"), "save_interval": 1, "keep": 100},
        trackers={"jsonl": {"episodes": 1000}},
    )


def sevens(sample: Any) -> float:
    return sample.completion.count("7") / 3


class Sevens:
    """Contributes reward ``sevens``: the share of sevens."""

    @hookimpl
    def forge_rewards(self) -> Any:
        yield component("reward", lambda settings, context: sevens, name="sevens")


def run(config: dict[str, Any], *overrides: str, plugins: Sequence[Any] = ()) -> Path:
    """The folder of a finished run."""
    return Forge(plugins=[Sevens(), *plugins]).run(config, list(overrides)).folder


def only_run(config: dict[str, Any]) -> Path:
    (folder,) = Path(config["checkpointing"]["output_dir"]).iterdir()
    return folder


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return lines_of(folder / "metrics.jsonl")


def tasks_of(folder: Path) -> list[list[str]]:
    """The tasks of each step, in the order they were trained in; a group's episodes are one."""
    steps: dict[int, list[str]] = defaultdict(list)
    for episode in lines_of(folder / "episodes.jsonl"):
        steps[episode["step"]].append(episode["task"])
    return [tasks[::8] for _, tasks in sorted(steps.items())]


@pytest.fixture
def evaluated(config: dict[str, Any]) -> dict[str, Any]:
    """With a bound of 2 and a score after each step: it is judged after the groups that are under
    way, so that the step's checkpoint has them."""
    held_out = config["dataset"] | {"split": "test", "size": 4}
    recipe = config["recipe"] | {"max_staleness": 2}
    return config | {
        "recipe": recipe,
        "eval_dataset": held_out,
        "evaluation": {"interval": 1},
    }


def order_of(config: dict[str, Any], steps: int = STEPS) -> list[list[str]]:
    """The same, as the run's order of tasks has it."""
    (stage,) = Forge(plugins=[Sevens()]).resolve(config).stages
    context = stage.early_context()
    assert stage.dataset is not None
    dataset = stage.dataset.build(context)
    order = TaskOrder(len(dataset), context.seed)
    return [[dataset[index].id for index in order.take(4)] for _ in range(steps)]


def test_it_learns_what_the_synchronous_course_learns(config: dict[str, Any]) -> None:
    del config["checkpointing"]["save_interval"]
    scores = {}
    for bound in (0, 1, 2):
        folder = run(
            config,
            f"recipe.max_staleness={bound}",
            "training.steps=30",
            "training.learning_rate=0.01",
        )
        rows = metrics_of(folder)
        assert len(rows) == 30
        staleness = [row["staleness/max"] for row in rows]
        assert max(staleness) == bound  # reached, and never exceeded
        assert all(0 <= row["staleness/mean"] <= row["staleness/max"] for row in rows)
        assert not any(row.get("groups/dropped", 0) for row in rows)
        assert tasks_of(folder) == order_of(config, 30)
        assert rows[0]["reward/mean"] < 0.3
        scores[bound] = fmean(row["reward/mean"] for row in rows[-5:])
    assert scores[0] > 0.9
    assert min(scores.values()) > scores[0] - 0.1


def test_a_resumed_run_trains_every_task_once_and_what_it_had_sampled(
    evaluated: dict[str, Any],
) -> None:
    config = evaluated
    with pytest.raises(RunStopped, match="stopped at step 3"):
        run(config, plugins=[StopAt(3)])
    folder = only_run(config)
    saved = json.loads((folder / "checkpoints/step_2/replay_buffer.json").read_text())
    ids = {entry["place"]: entry["task"] for entry in saved}
    assert ids.keys() >= {8, 9, 10, 11}
    Forge(plugins=[Sevens()]).run(resume=folder)
    assert [row["step"] for row in metrics_of(folder)] == list(range(1, STEPS + 1))
    assert tasks_of(folder) == order_of(config)
    third = [e for e in lines_of(folder / "episodes.jsonl") if e["step"] == 3]
    groups, _ = from_json(json.dumps(saved), lambda place: Task(ids[place], ""))
    sampled = [
        episode.tokens.tolist()
        for _, group in sorted(groups.items())[:4]
        for episode in group.episodes
    ]
    assert [episode["tokens"] for episode in third] == sampled
    assert max(row["staleness/max"] for row in metrics_of(folder)) <= 2


def test_a_lower_bound_after_a_resume_drops_what_is_too_old(evaluated: dict[str, Any]) -> None:
    config = evaluated
    with pytest.raises(RunStopped):
        run(config, plugins=[StopAt(3)])
    folder = only_run(config)
    Forge(plugins=[Sevens()]).run(resume=folder, overrides=["recipe.max_staleness=1"])
    rows = metrics_of(folder)
    assert sum(row["groups/dropped"] for row in rows[2:]) >= 4
    assert max(row["staleness/max"] for row in rows[2:]) <= 1
    assert tasks_of(folder) == order_of(config)


@pytest.mark.slow
def test_a_killed_run_trains_every_task_once(evaluated: dict[str, Any], runs: Any) -> None:
    config = evaluated
    killed = runs(config | {"rewards": {"exact_match": {}}}, "training.steps=2000")
    killed.until_step(5)
    killed.kill()
    done = len(killed.lines("metrics.jsonl"))
    newest = max(killed.folder.glob("checkpoints/step_*/replay_buffer.json"), key=_step)
    assert json.loads(newest.read_text()) != []
    killed.resume(f"training.steps={done + 3}")
    assert killed.end() == 0, killed.printed
    assert tasks_of(killed.folder) == order_of(config, done + 3)
    assert max(row["staleness/max"] for row in metrics_of(killed.folder)) <= 2


def _step(saved: Path) -> int:
    return int(saved.parent.name.removeprefix("step_"))


class Killing:
    """Kills the replay buffer's process when the checkpoint of step 2 is written."""

    @hookimpl
    def forge_checkpoint_saved(self, folder: Path, step: int) -> None:
        if step == 2:
            for pid in _printing_to(folder.parents[1] / "logs" / "replay_buffer-0-rank0.log"):
                os.kill(pid, signal.SIGKILL)


def _printing_to(log: Path) -> list[int]:
    return printing_to(lambda file: file == str(log))


def test_what_the_buffer_took_down_with_it_is_sampled_again(evaluated: dict[str, Any]) -> None:
    folder = run(evaluated, "replay_buffer.isolate=true", plugins=[Killing()])
    saved = json.loads((folder / "checkpoints/step_2/replay_buffer.json").read_text())
    ids = {entry["place"]: entry["task"] for entry in saved}
    assert ids.keys() >= {8, 9, 10, 11}
    kinds = Counter(event["kind"] for event in lines_of(folder / "events.jsonl"))
    assert (kinds["replica_died"], kinds["replica_restarted"]) == (1, 1)
    warnings = [e for e in lines_of(folder / "events.jsonl") if e["kind"] == "warning"]
    assert any("lost with the replay buffer" in event["message"] for event in warnings)
    assert tasks_of(folder) == order_of(evaluated)
    # Sampled again by the weights of step 2.
    assert metrics_of(folder)[2]["staleness/max"] == 0
    assert _printing_to(folder / "logs" / "replay_buffer-0-rank0.log") == []


def test_an_evaluation_measures_the_weights_of_its_step(evaluated: dict[str, Any]) -> None:
    held_out = {task.id for task in _held_out(evaluated)}
    versions: list[set[int]] = [set()]

    class Watching:
        @hookimpl
        def forge_episode_finished(self, episode: Episode) -> None:
            if episode.task.id in held_out:
                versions[-1].update(episode.versions[episode.loss_mask].tolist())

        @hookimpl
        def forge_step_finished(self, record: Any) -> None:
            versions.append(set())

    run(evaluated, plugins=[Watching()])
    assert versions == [{step} for step in range(STEPS + 1)]


def _held_out(config: dict[str, Any]) -> list[Task]:
    (stage,) = Forge(plugins=[Sevens()]).resolve(config).stages
    assert stage.eval_dataset is not None
    dataset = stage.eval_dataset.build(stage.early_context())
    return [dataset[index] for index in range(len(dataset))]


class Faults:
    """An environment that breaks on a task once the trainer is at work, which would take an hour.

    Args:
        task: its id.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self.training = asyncio.Event()

    @hookimpl
    def forge_environments(self) -> Any:
        yield component("environment", lambda settings, context: Breaking(self), name="breaking")

    @hookimpl
    def forge_trainers(self) -> Any:
        yield component(
            "trainer",
            lambda settings, context: Slow(self, settings, context),
            name="slow",
            settings=TorchTrainerSettings,
        )


class Breaking:
    max_turns = 1

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    async def start(self, task: Task, seed: int) -> Any:
        return BreakingInteraction(task, self.faults)


class BreakingInteraction:
    def __init__(self, task: Task, faults: Faults) -> None:
        self.prompt = task.prompt
        self.breaks = task.id == faults.task
        self.faults = faults

    async def respond(self, completion: str, finish_reason: str = "stop") -> None:
        if self.breaks:
            await self.faults.training.wait()
            raise OSError("the tool is gone")


class Slow(TorchTrainer):
    def __init__(self, faults: Faults, settings: Any, context: BuildContext) -> None:
        super().__init__(settings, context)
        self.faults = faults

    async def train_step(self, *args: Any, **kwargs: Any) -> Any:
        self.faults.training.set()
        await asyncio.sleep(3600)


def test_a_failure_ahead_ends_the_run_at_once_as_itself(config: dict[str, Any]) -> None:
    """A task of the second step breaks while the first is being trained."""
    config["sampling"]["max_tokens"] = 30  # long enough to stop by themselves
    config["model"]["init"]["config"]["initializer_range"] = 0.02
    broken = order_of(config)[1][0]
    with pytest.raises(RunFailed, match="OSError: the tool is gone"):
        run(
            config,
            *(
                "recipe.max_staleness=1",
                "environment.use=breaking",
                "environment.on_failure=fail",
                "trainer.use=slow",
            ),
            plugins=[Faults(broken)],
        )
    assert metrics_of(only_run(config)) == []


def test_a_hopeless_reward_fails_the_run_with_its_own_cause(config: dict[str, Any]) -> None:
    def broken(sample: Any) -> float:
        raise ValueError("no verdict")

    class Broken:
        @hookimpl
        def forge_rewards(self) -> Any:
            yield component("reward", lambda settings, context: broken, name="broken")

    config["rewards"] = {"broken": {}}
    with pytest.raises(RunFailed, match=r"reward 'broken' failed on .* ValueError: no verdict"):
        run(config, "recipe.max_staleness=1", "training.steps=1000", plugins=[Broken()])


class Gone(TorchGenerator):
    """Answers the first step's requests and no more."""

    calls = 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        self.calls += 1
        if self.calls > 4:
            raise RunFailed("the engine is gone", component="generator gone")
        return await super().generate(prompt, sampling)


def test_a_generator_that_is_gone_fails_the_run_with_its_own_cause(config: dict[str, Any]) -> None:
    class Engine:
        @hookimpl
        def forge_generators(self) -> Any:
            yield component("generator", Gone, name="gone", settings=TorchGeneratorSettings)

    with pytest.raises(RunFailed, match="generator gone: the engine is gone"):
        run(config, "recipe.max_staleness=1", "generator.use=gone", plugins=[Engine()])


class CutOff(TorchGenerator):
    """Gives half of the requests up half-way, as an engine may when its weights change."""

    def __init__(self, settings: TorchGeneratorSettings, context: BuildContext) -> None:
        super().__init__(settings, context)
        self.calls = 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        completions = await super().generate(prompt, sampling)
        self.calls += 1
        if self.calls % 2:
            first, *others = completions
            cut = Completion(first.tokens[:1], first.logprobs[:1], first.versions[:1], "cancelled")
            return [cut, *others]
        return completions


def test_what_an_engine_gives_up_is_sampled_again(config: dict[str, Any]) -> None:
    class Engine:
        @hookimpl
        def forge_generators(self) -> Any:
            yield component("generator", CutOff, name="cut_off", settings=TorchGeneratorSettings)

    run(config, "recipe.max_staleness=1", "generator.use=cut_off", plugins=[Engine()])
    folder = only_run(config)
    assert tasks_of(folder) == order_of(config)
    finished = [
        turn["completion"]["finish_reason"]
        for step in range(1, STEPS)
        for entry in json.loads(
            (folder / f"checkpoints/step_{step}/replay_buffer.json").read_text()
        )
        for episode in entry["episodes"]
        for turn in episode["turns"]
        if turn["completion"] is not None
    ]
    assert finished
    assert "cancelled" not in finished
