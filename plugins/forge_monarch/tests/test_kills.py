"""Replicas killed at random moments of a run: it ends well, and every token is from its version.

The moments are drawn from a seed: ``KILLS_SEED=7 pytest test_kills.py`` draws others.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import Placement, ReplicaDied, ReplicaSpec, Selection, derive_seed
from forge_models.folder import load_model
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_run.data.order import TaskOrder
from forge_services import Health, Service
from forge_testing.conformance.runtime import PROBE, ProbeSettings
from forge_testing.context import bare_context
from forge_testing.distributions import FakeSite
from forge_testing.reward_processes import install_slow_reward, reward_processes
from forge_testing.runs import PATIENCE, Run, lines_of, small_config

SEED = int(os.environ.get("KILLS_SEED", "0"))
TASKS, GROUP = 4, 8
"""Of a step."""

PLUGIN = '''
    """Tracker ``transcript``, reward ``chance``."""

    import json
    import random
    import time
    from pathlib import Path

    from forge_core import RewardComponent, Settings, TrackerComponent, hookimpl


    class Transcript:
        """Writes every episode, with the logprobs of its tokens."""

        def start(self, run):
            self.file = (run.folder / "transcript.jsonl").open("a")

        def step(self, record):
            pass

        def episodes(self, step, episodes):
            for episode in episodes:
                line = {
                    "step": step,
                    "task": episode.task.id,
                    "tokens": episode.tokens.tolist(),
                    "versions": episode.versions.tolist(),
                    "logprobs": episode.logprobs.tolist(),
                    "failures": episode.failures,
                }
                self.file.write(json.dumps(line) + "\\n")
            self.file.flush()

        def event(self, event):
            pass

        def finish(self, summary):
            self.file.close()


    class ChanceSettings(Settings):
        samples: int
        release: Path


    class Chance:
        """Rewards by chance, so that every step changes the weights.

        After so many samples it waits for a file: the run does not end before it is there.
        """

        def __init__(self, settings):
            self.settings = settings
            self.judged = 0

        def __call__(self, sample):
            self.judged += 1
            while self.judged > self.settings.samples and not self.settings.release.exists():
                time.sleep(0.05)
            return random.Random(self.judged).random()


    def build_transcript(settings, context):
        return Transcript()


    def build_chance(settings, context):
        return Chance(settings)


    @hookimpl
    def forge_trackers():
        yield TrackerComponent(
            name="transcript", settings=Settings, build=build_transcript, summary="all of it"
        )


    @hookimpl
    def forge_rewards():
        yield RewardComponent(
            name="chance", settings=ChanceSettings, build=build_chance, summary="by chance"
        )
'''


@dataclass
class Watched:
    """A run that is held before its last steps until it is let go.

    Args:
        run: the process.
        release: the file that lets it go.
        steps: of the run.
    """

    run: Run
    release: Path
    steps: int

    def done(self) -> int:
        """Steps so far."""
        return len(self.run.lines("metrics.jsonl"))

    def story(self) -> dict[int, list[str]]:
        """Replica of the generator -> what happened to it, in order."""
        story: dict[int, list[str]] = {}
        for event in self.run.lines("events.jsonl"):
            if event["kind"].startswith("replica_") and event["data"]["service"] == "generator":
                story.setdefault(event["data"]["replica"], []).append(event["kind"])
        return story

    def all_back(self, kills: int) -> bool:
        """Whether all deaths have been told, and every replica has come back."""
        story = self.story().values()
        deaths = sum(event != "replica_restarted" for events in story for event in events)
        return deaths == kills and all(events[-1] == "replica_restarted" for events in story)


@pytest.fixture
def watched(runs: Callable[..., Run], tmp_path: Path) -> Callable[..., Watched]:
    """``watched(steps, shape, **sections)``: a run on runtime ``monarch`` that is started."""

    def start(steps: int, shape: dict[str, Any] | None = None, **sections: Any) -> Watched:
        folder = tmp_path / "run"
        folder.mkdir()
        FakeSite(folder)("kills", PLUGIN)
        release = tmp_path / "release"
        chance = {
            "samples": (steps - 2) * TASKS * GROUP,
            "release": str(release),
            "deadline": 600,
        }
        config = small_config(
            shape,
            **{
                "recipe": {"use": "grpo", "group_size": GROUP},
                "training": {"steps": steps, "batch_size": TASKS * GROUP, "learning_rate": 0.003},
                "sampling": {"max_tokens": 24},
                "rewards": {"chance": chance},
                "trackers": {"jsonl": {"episodes": TASKS * GROUP}, "transcript": {}},
                "checkpointing": {"save_interval": 1, "keep": steps},
                "transport": {"use": "shm"},
                # On a busy machine a process that lives may be silent for long.
                "runtime": {"use": "monarch", "hang_after": 60},
                **sections,
            },
        )
        return Watched(runs(config, name="run"), release, steps)

    return start


class Killer:
    """Kills processes of the generator's replicas, but none so often in a row that it is given up.

    Args:
        watched: the run.
    """

    def __init__(self, watched: Watched) -> None:
        self.killed: list[int] = []
        self._watched = watched
        self._in_a_row: Counter[int | None] = Counter()
        self._back_at: dict[int | None, tuple[int, int]] = {}

    def victims(self) -> list[int]:
        """Processes that may be killed now."""
        story, done = self._watched.story(), self._watched.done()
        for replica, events in story.items():
            restarts = events.count("replica_restarted")
            known, since = self._back_at.setdefault(replica, (0, done))
            if restarts > known:
                self._back_at[replica] = (restarts, done)
            elif events[-1] == "replica_restarted" and done >= since + 2:
                self._in_a_row[replica] = 0  # a whole step: it has answered
        run = self._watched.run
        return [
            pid
            for pid in run.ranks("generator")
            # Neither what an engine has started: a rank is below one process of the run.
            if _parent(_parent(pid)) == run.process.pid
            and pid not in self.killed
            and self._in_a_row[_replica(pid)] < 3
        ]

    def kill(self, pid: int) -> None:
        """Kill one, unless it has ended by itself."""
        replica = _replica(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.killed.append(pid)
        self._in_a_row[replica] += 1
        restarts, _ = self._back_at.get(replica, (0, 0))
        self._back_at[replica] = (restarts, sys.maxsize)  # until it is back once more


def kill_at_random(watched: Watched, *, kills: int, seed: int) -> int:
    """Kill replicas of the generator at random moments, now and then all at once.

    The first moment is before the first step; then they go on to the last steps.

    Returns:
        How many were killed.
    """
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, watched.steps - 5), kills - 1))
    killer = Killer(watched)
    for moment in [0, *moments]:
        if len(killer.killed) >= kills:
            break
        watched.run.until(lambda moment=moment: watched.done() >= moment)
        time.sleep(chance.uniform(0, 0.3))
        watched.run.until(killer.victims)
        found = killer.victims()
        for pid in found if chance.random() < 0.2 else [chance.choice(found)]:
            killer.kill(pid)
    return len(killer.killed)


def _log(pid: int) -> str:
    """Where a process prints; "" if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    """0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _replica(pid: int) -> int | None:
    """Index of the generator's replica that a process belongs to."""
    log = re.search(r"/generator-(\d+)-rank", _log(pid))
    return int(log[1]) if log else None


def check_deaths(watched: Watched, kills: int) -> None:
    """Every kill took a life, every life was followed by the next, and the events say when."""
    one_death = "replica_died (replica_restart_failed )*replica_restarted "
    for replica, events in watched.story().items():
        assert re.fullmatch(f"({one_death})+", " ".join(events) + " "), (replica, events)
    told = Counter(kind for events in watched.story().values() for kind in events)
    assert told["replica_died"] + told["replica_restart_failed"] == kills
    for event in watched.run.lines("events.jsonl"):
        if event["kind"] == "replica_restarted":
            assert event["data"]["seconds"] > 0
        if event["kind"] == "replica_died":
            # Of a process that was killed before it had told its pid, Monarch knows only silence.
            unknown = "(process " not in event["message"] and "does not answer" in event["message"]
            assert "was killed by SIGKILL" in event["message"] or unknown


def check_episodes(watched: Watched) -> list[dict[str, Any]]:
    """Every episode is there once: each task once in an epoch, with its whole group."""
    run = watched.run
    transcript = lines_of(run.folder / "transcript.jsonl")
    assert [line["step"] for line in run.lines("metrics.jsonl")] == [*range(1, watched.steps + 1)]
    for records in (transcript, run.lines("episodes.jsonl")):
        steps = Counter(episode["step"] for episode in records)
        assert steps == dict.fromkeys(range(1, watched.steps + 1), TASKS * GROUP)
    # The order in which tasks are taken is that of a run without deaths.
    names = sorted({episode["task"] for episode in transcript}, key=_natural)
    order = TaskOrder(len(names), derive_seed(0, "stage", "grpo"))
    expected = [names[index] for index in order.take(TASKS * watched.steps)]
    assert [episode["task"] for episode in transcript] == [
        name for name in expected for _ in range(GROUP)
    ]
    assert not any(episode["failures"] for episode in transcript)
    return transcript


def check_versions(
    watched: Watched, transcript: Sequence[dict[str, Any]], tolerance: float
) -> None:
    """Every token has the logprob that the weights of its version give it, and of no other."""
    folder = watched.run.folder
    by_version: dict[int, list[dict[str, Any]]] = {}
    for episode in transcript:
        (version,) = set(episode["versions"]) - {-1}
        assert version == episode["step"] - 1, "on policy"
        by_version.setdefault(version, []).append(episode)
    model = load_model(folder / "model")
    before: dict[str, torch.Tensor] | None = None
    for version, episodes in sorted(by_version.items()):
        saved = folder / "model" if version == 0 else folder / "checkpoints" / f"step_{version}"
        weights = load_model(saved).state_dict()
        model.load_state_dict(weights)
        assert _differences(model, episodes).max() < tolerance, version
        if before is not None:
            model.load_state_dict(before)
            others = _differences(model, episodes)
            assert (others > 10 * tolerance).float().mean() > 0.5, "versions differ"
        before = weights


@torch.no_grad()
def _differences(model: Any, episodes: Sequence[dict[str, Any]]) -> torch.Tensor:
    """For every sampled token: recorded logprob against the model's. [N]"""
    width = max(len(episode["tokens"]) for episode in episodes)
    rows = torch.tensor([e["tokens"] + [0] * (width - len(e["tokens"])) for e in episodes])
    logprobs = model(input_ids=rows).logits[:, :-1].float().log_softmax(-1)
    found = logprobs.gather(-1, rows[:, 1:, None])[..., 0]
    pad = [0.0] * width
    recorded = torch.tensor([(e["logprobs"] + pad)[1:width] for e in episodes])
    sampled = torch.tensor([(e["versions"] + [-1] * width)[1:width] for e in episodes]) >= 0
    return (found - recorded).abs()[sampled]


def _natural(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def kill_and_check(watched: Watched, *, kills: int, tolerance: float) -> None:
    """Kill at least so many; the run ends well, every episode is there, every token's logprob is
    within ``tolerance`` of what its version gives it."""
    killed = kill_at_random(watched, kills=kills, seed=SEED)
    assert killed >= kills
    watched.run.until(lambda: watched.all_back(killed))
    watched.release.touch()
    assert watched.run.end() == 0, watched.run.printed
    assert watched.run.ranks() == []
    check_deaths(watched, killed)
    check_versions(watched, check_episodes(watched), tolerance)


@pytest.mark.slow
def test_ten_killed_generators_are_never_seen_by_the_run(watched: Callable[..., Watched]) -> None:
    run = watched(steps=100, generator={"replicas": 3})
    kill_and_check(run, kills=10, tolerance=1e-4)


@pytest.mark.slow
def test_killed_engines_are_never_seen_by_the_run(watched: Callable[..., Watched]) -> None:
    """The same with vLLM, which takes longer to come back."""
    run = watched(
        steps=30,
        shape={"head_dim": 32},  # vLLM's CPU attention has no smaller one
        generator={
            "use": "vllm",
            "replicas": 2,
            "engine": {"kv_cache_memory_bytes": 32 << 20, "max_model_len": 64},
        },
    )
    kill_and_check(run, kills=3, tolerance=1e-3)


@pytest.mark.slow
def test_ten_killed_reward_workers_cost_no_episode_its_reward(
    runs: Callable[..., Run], tmp_path: Path
) -> None:
    """The processes that judge, those that stand over them, and the workers that have these."""
    kills, steps = 10, 30
    install_slow_reward(tmp_path / "run")
    run = runs(
        small_config(
            training={"steps": steps, "batch_size": TASKS * GROUP, "learning_rate": 0.003},
            rewards={"slow": {"deadline": 300}},
            reward_workers={"replicas": 2},
            trackers={"jsonl": {"episodes": TASKS * GROUP}},
            transport={"use": "shm"},
            runtime={"use": "monarch", "hang_after": 60},
        )
    )
    chance = random.Random(SEED)
    killed: set[int] = set()
    # Between two kills a step is done: what was being judged has been judged by then.
    for moment in range(1, 2 * kills, 2):
        run.until_step(moment)
        time.sleep(chance.uniform(0, 0.1))
        run.until(lambda: _under_workers(run))
        killed.add(victim := chance.choice(chance.choice(_under_workers(run))))
        os.kill(victim, signal.SIGKILL)
    assert run.end() == 0, run.printed
    assert len(killed) == kills
    assert run.ranks() == []
    events = run.kinds()
    assert events["reward_failed"] == 0
    assert 0 < events["reward_retried"] + events["replica_died"] <= kills
    episodes = run.lines("episodes.jsonl")
    assert Counter(episode["step"] for episode in episodes) == dict.fromkeys(
        range(1, steps + 1), TASKS * GROUP
    )
    for episode in episodes:
        assert episode["reward"] == zlib.crc32(episode["completions"][-1].encode()) / 2**32
        assert not episode["failures"]


def _under_workers(run: Run) -> list[list[int]]:
    """For each process that judges: itself, the one that stands over it, and the worker."""
    workers = run.ranks("rewards")
    return [line[:3] for line in reward_processes(run) if len(line) > 2 and line[2] in workers]


@pytest.mark.slow
def test_a_killed_trainer_rank_ends_the_run_which_resumes_to_the_same_numbers(
    runs: Callable[..., Run], tmp_path: Path
) -> None:
    for name in ("undisturbed", "killed"):
        install_slow_reward(tmp_path / name)
    config = small_config(
        rewards={"slow": {}},
        training={"steps": 20, "batch_size": 32, "learning_rate": 0.003},
        transport={"use": "shm"},
        trainer={"use": "titan", "procs": 2},
        checkpointing={"save_interval": 5},
        runtime={"use": "monarch"},
    )
    undisturbed = runs(config, name="undisturbed")
    assert undisturbed.end() == 0, undisturbed.printed
    run = runs(config, name="killed")
    run.until(lambda: run.kinds()["checkpoint"])
    (rank,) = [pid for pid in run.ranks("trainer") if _log(pid).endswith("rank1.log")]
    os.kill(rank, signal.SIGKILL)
    assert run.end() == 1
    (error,) = [line for line in run.printed.splitlines() if line.startswith("error: ")]
    assert "trainer titan" in error
    assert f"rank 1 of replica 0 of trainer (process {rank}) was killed by SIGKILL" in error
    assert str(run.folder / "logs" / "trainer-0-rank1.log") in error
    assert run.ranks() == []
    assert 5 <= len(run.lines("metrics.jsonl")) < 20
    run.resume()
    assert run.end() == 0, run.printed
    assert run.ranks() == []
    resumed, expected = run.lines("metrics.jsonl"), undisturbed.lines("metrics.jsonl")
    assert [line["step"] for line in resumed] == [line["step"] for line in expected]
    for here, there in zip(resumed, expected, strict=True):
        assert here["loss"] == pytest.approx(there["loss"], abs=1e-6)
        assert here["reward/mean"] == there["reward/mean"]


@pytest.mark.slow
def test_a_generator_that_never_gets_up_ends_the_run_with_one_error(
    runs: Callable[..., Run],
) -> None:
    """Killed as soon as it comes up, again and again, until the outage limit is over."""
    run = runs(
        small_config(
            transport={"use": "shm"}, runtime={"use": "monarch"}, generator={"outage_limit": 10}
        )
    )
    killed: set[int] = set()
    while run.process.poll() is None:
        for pid in set(run.ranks("generator")) - killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    assert run.end() == 1
    (error,) = [line for line in run.printed.splitlines() if line.startswith("error: ")]
    assert re.search(r"generator torch: no (healthy replica for 10 s|replica is left)", error)
    assert "was killed by SIGKILL" in error
    assert len(killed) >= 2
    assert run.kinds()["service_failed"] == 1
    assert run.ranks() == []


@pytest.mark.slow
def test_an_outage_beyond_its_limit_ends_the_run_with_one_error(runs: Callable[..., Run]) -> None:
    run = runs(
        small_config(
            training={"steps": 2000, "batch_size": 32},
            transport={"use": "shm"},
            generator={"replicas": 2, "outage_limit": 0.2},  # no engine starts in that
            runtime={"use": "monarch"},
        )
    )
    run.until_step(2)
    for pid in run.ranks("generator"):
        os.kill(pid, signal.SIGKILL)
    assert run.end() == 1
    (error,) = [line for line in run.printed.splitlines() if line.startswith("error: ")]
    assert "generator torch: no healthy replica for 0.2 s" in error
    assert len(re.findall(r"replica \d: .*? was killed by SIGKILL", error)) == 2
    assert run.ranks() == []


async def test_an_exception_a_death_and_a_hang_are_told_apart(tmp_path: Path) -> None:
    """In what the caller gets, and in the events."""
    events: list[tuple[str, str]] = []
    runtime = MONARCH.build(MonarchSettings(hang_after=5), bare_context())
    service = await Service.start(
        runtime,
        Selection(family="generator", component=PROBE, settings=ProbeSettings(folder=tmp_path)),
        replace(bare_context(), logs=tmp_path / "logs"),
        name="generator",
        placement=Placement(replicas=2),
        on_event=lambda kind, message, data: events.append((kind, message)),
    )

    async def disturbed(number: int) -> Exception:
        """What a session's call ends with whose process gets a signal."""
        async with service.session():
            pid = await service.pid.route()
            call = asyncio.ensure_future(service.slow_index.route(600))
            await asyncio.sleep(0.2)
            os.kill(pid, number)
            with pytest.raises(ReplicaDied) as caught:
                await call
            return caught.value

    async def all_back() -> None:
        while any(replica.health != Health.HEALTHY for replica in service.status().replicas):
            await asyncio.sleep(0.05)

    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ZeroDivisionError, match="no good") as raised:
                await service.fail.route("no good")
            assert "in fail" in "".join(traceback.format_exception(raised.value))
            assert events == []
            death = await disturbed(signal.SIGKILL)
            assert "was killed by SIGKILL; its log: " in str(death)
            await all_back()
            hang = await disturbed(signal.SIGSTOP)
            assert "does not answer: it hangs, or its host is cut off" in str(hang)
            await all_back()
    finally:
        await service.close()
        await runtime.close()
    assert [kind for kind, _ in events] == ["replica_died", "replica_restarted"] * 2
    assert "was killed by SIGKILL" in events[0][1]
    assert "does not answer" in events[2][1]


async def test_a_process_that_is_killed_while_it_starts_has_died(tmp_path: Path) -> None:
    """Before it has said a word: that is a death like any other, not an error of the component."""
    runtime = MONARCH.build(MonarchSettings(), bare_context())
    spec = ReplicaSpec(
        name="generator",
        index=0,
        placement=Placement(),
        selection=Selection(
            family="generator", component=PROBE, settings=ProbeSettings(folder=tmp_path)
        ),
        context=replace(bare_context(), logs=tmp_path / "logs"),
    )
    others = set(_children())
    spawning = asyncio.ensure_future(runtime.spawn(spec))
    try:
        async with asyncio.timeout(PATIENCE):
            while not (started := set(_children()) - others):
                assert not spawning.done()
                await asyncio.sleep(0.01)
            os.kill(started.pop(), signal.SIGKILL)
            with pytest.raises(ReplicaDied, match=r"SIGKILL|has ended"):
                await spawning
    finally:
        await runtime.close()


def _children() -> list[int]:
    """Processes of replicas that this one has started."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(parent) == os.getpid() and b"forge_monarch.bootstrap" in words:
                found.append(int(process.name))
    return found
