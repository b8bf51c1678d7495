"""Reward processes never outlive who started them, nor what they started themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from forge_core import RewardComponent, RewardPart, RunFailed, Selection, Settings, UsageError

SCRIPT = """
    import asyncio, dataclasses, os, pathlib, re, subprocess, sys, threading
    from forge_core import BuildContext, DistributedSection, Episode, ModelSection, Placement
    from forge_core import RewardComponent, RewardPart, Selection, Settings, Task, TrainingSection
    from forge_rewards.pool import RewardPool

    class Limit(Settings):
        limit: int = 3
        file: str = ""

    class Short:
        def __init__(self, limit):
            self.limit = limit

        def __call__(self, sample):
            if sample.completion in ("hang", "sandbox"):
                apart = sample.completion == "sandbox"
                child = subprocess.Popen(["sleep", "600"], start_new_session=apart)
                pathlib.Path(sys.argv_file).write_text(f"{os.getppid()} {os.getpid()} {child.pid}")
                re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter lock for years
            if sample.completion == "exit":
                os._exit(1)
            return float(len(sample.completion) <= self.limit)

    def build(settings, context):
        sys.argv_file = settings.file
        return Short(settings.limit)

    component = RewardComponent(name="short", settings=Limit, build=build, summary="")
    part = RewardPart(
        selection=Selection(
            family="reward", component=component, settings=Limit(limit=2, file=sys.argv[1])
        ),
        deadline=600.0,
    )
    context = BuildContext(
        model=ModelSection(), training=TrainingSection(), distributed=DistributedSection(),
    )
    episodes = [
        Episode(Task(id="0", prompt=""), turns=[], completion_texts=[text])
        for text in sys.argv[2:]
    ]

    async def main():
        pool = RewardPool({"short": part}, context)
        await pool.score(episodes)
        print([episode.reward for episode in episodes])

    async def count_descriptors():
        hasty = dataclasses.replace(part, deadline=1.0)
        for _ in range(2):  # the first pool also opens what the process keeps
            pool = RewardPool({"short": hasty}, context, placement=Placement(replicas=2))
            await pool.score(episodes)
            await pool.score(episodes[:1])  # the others may have left no judge to close
            await pool.close()
            while any(each.name.startswith("forge-rewards") for each in threading.enumerate()):
                await asyncio.sleep(0.01)  # temporary files are being removed
            print(len(os.listdir("/proc/self/fd")))

    asyncio.run(count_descriptors() if sys.argv[2] == "count" else main())
"""


@pytest.fixture
def script(tmp_path):
    """A script that defines its reward in ``__main__``, as a notebook does."""
    path = tmp_path / "run.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return [sys.executable, str(path), str(tmp_path / "pids")]


def read_pids(path):
    limit = time.monotonic() + 120
    while not (path.exists() and len(path.read_text().split()) > 1):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


def test_rewards_defined_in_a_script_reach_the_process(script):
    done = subprocess.run([*script, "ab", "abc"], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[1.0, 0.0]\n", done.stderr


def test_kill_9_of_the_pools_process_leaves_nothing(script, tmp_path, until_gone):
    parent = subprocess.Popen([*script, "ab", "hang"])
    pids = read_pids(tmp_path / "pids")  # outer, inner and what the reward has started
    parent.kill()
    parent.wait()
    until_gone(*pids)


def test_the_inner_process_dies_with_the_outer(script, tmp_path, until_gone):
    parent = subprocess.Popen([*script, "ab", "hang"], stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        outer, inner, child = read_pids(tmp_path / "pids")
        (tmp_path / "pids").unlink()
        os.kill(outer, signal.SIGKILL)
        until_gone(outer, inner, child)
    # The pool kills the rest, tries the sample once more, and then goes on without it.
    assert parent.communicate(timeout=300)[0] == "[1.0, 0.0]\n"


def test_a_script_that_forgets_to_close_leaves_nothing(script, tmp_path):
    done = subprocess.run([*script, "ab"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    limit = time.monotonic() + 120
    while str(tmp_path) in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout:
        assert time.monotonic() < limit
        time.sleep(0.02)


async def test_a_passed_deadline_kills_what_the_reward_started(
    pool_of, part, episodes, tmp_path, until_gone
):
    scored = episodes("1", f"spawn {tmp_path / 'pids'}")
    await pool_of({"a": part(deadline=2.0)}).score(scored)
    assert scored[1].failures == {"a": "deadline of 2 s passed"}
    until_gone(*read_pids(tmp_path / "pids"))


@pytest.mark.parametrize("way", ["timeout", "group", "session", "daemon", "double fork"])
async def test_a_passed_deadline_kills_sandboxes(
    pool_of, part, episodes, tmp_path, until_gone, way
):
    """Programs in a process group or session of their own, also when their parent has ended."""
    scored = episodes("1", f"sandbox {way} {tmp_path / 'pids'}")
    await pool_of({"a": part(deadline=3.0)}).score(scored)
    assert scored[1].failures == {"a": "deadline of 3 s passed"}
    until_gone(*read_pids(tmp_path / "pids"))


async def test_what_a_reward_started_ends_with_its_process(
    pool_of, part, episodes, tmp_path, until_gone
):
    pool = pool_of({"a": part(deadline=60.0)})
    await pool.score(episodes(f"sandbox session-ends {tmp_path / 'pids'}"))
    until_gone(*read_pids(tmp_path / "pids"))


def test_kill_9_of_the_pools_process_kills_sandboxes(script, tmp_path, until_gone):
    parent = subprocess.Popen([*script, "ab", "sandbox"])
    pids = read_pids(tmp_path / "pids")
    parent.kill()
    parent.wait()
    until_gone(*pids)


async def test_close_leaves_no_process_or_thread(pool_of, part, episodes, until_gone):
    pool = pool_of({"a": part(deadline=1.0)}, replicas=2)
    scored = episodes("pid", "pid", "pid", "hang", "exit 1")
    await pool.score(scored)
    await pool.close()
    await pool.close()
    until_gone(*(int(episode.reward) for episode in scored[:3]))
    limit = time.monotonic() + 120
    while any(thread.name.startswith("forge-rewards") for thread in threading.enumerate()):
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)
    with pytest.raises(RunFailed, match="the reward pool is closed"):
        await pool.score(episodes("1"))


def test_close_leaves_no_descriptor(script):
    # In a process of its own: in this one the descriptors of other tests come and go.
    command = [*script, "count", "exit", "hang"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    first, second = done.stdout.split()
    assert first == second, done.stderr


async def test_close_while_a_sample_hangs(pool_of, part, episodes):
    pool = pool_of({"a": part(deadline=60.0)})
    await pool.score(episodes("1"))
    scoring = asyncio.ensure_future(pool.score(episodes("hang")))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await pool.close()
    with pytest.raises(RunFailed, match="closed"):
        await scoring
    assert time.monotonic() - started < 50.0


async def test_a_cancelled_call_frees_its_worker(pool_of, part, episodes, tmp_path, until_gone):
    pool = pool_of({"a": part(deadline=60.0)})
    scoring = asyncio.ensure_future(pool.score(episodes(f"spawn {tmp_path / 'pids'}")))
    pids = await asyncio.to_thread(read_pids, tmp_path / "pids")
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    until_gone(*pids)
    scored = episodes("3")
    await pool.score(scored)
    assert scored[0].reward == 3.0


def judges_of(episodes):
    """Judge -> its reward process, of those that said who they are."""

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    said = [int(episode.reward) for episode in episodes]
    return {parent(parent(pid)): pid for pid in said}


async def test_a_killed_judge_costs_nothing(pool_of, part, episodes, until_gone):
    """What it was judging is judged by another, or by itself once it is back."""
    pool = pool_of({"a": part(deadline=60.0)}, replicas=2, isolate=True)
    told = episodes("pid", "pid")
    await pool.score(told)
    for killed in (1, 2):
        judges = dict(list(judges_of(told).items())[:killed])
        scored = episodes(*["sleep 0.05"] * 40, "pid", "pid")
        scoring = asyncio.ensure_future(pool.score(scored))
        await asyncio.sleep(0.3)
        for judge in judges:
            os.kill(judge, signal.SIGKILL)
        await scoring
        assert [episode.reward for episode in scored[:40]] == [1.0] * 40
        assert not any(episode.failures for episode in scored)
        until_gone(*judges.values())
        told = scored[40:]
    assert pool.metrics()["calls"] == 2 + 42 + 42
    assert [kind for kind, _ in pool.heard].count("replica_died") >= 2
    assert "reward_failed" not in {kind for kind, _ in pool.heard}


class LockedSettings(Settings):
    anything: object = None


def build_locked(settings, context):
    return settings.anything


async def test_a_reward_that_cannot_be_pickled_is_named(pool_of, episodes):
    component = RewardComponent(
        name="locked", settings=LockedSettings, build=build_locked, summary="holds a lock"
    )
    selection = Selection(
        family="reward", component=component, settings=LockedSettings(anything=threading.Lock())
    )
    pool = pool_of({"mine": RewardPart(selection=selection)})
    with pytest.raises(
        UsageError, match=r"reward 'locked' cannot be sent to a reward process: .*lock"
    ):
        await pool.score(episodes("1"))
