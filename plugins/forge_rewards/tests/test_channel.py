"""Rewards and judged programs that write where they should not: no other episode gets a number."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forge_core import RewardComponent, RewardPart, Selection, Settings

JUNK = (
    "import os, struct\n"
    "for descriptor in range(3, 1025):\n"
    "    for junk in (struct.pack('<dI', 0.5, 0), bytes(64)):\n"
    "        try: os.write(descriptor, junk)\n"
    "        except OSError: pass\n"
)
"""Writes what looks like rewards to every descriptor."""


class Zero:
    """Pays nothing, after doing to the process what the completion names."""

    def __call__(self, sample):
        match sample.completion:
            case "fork":  # and come back twice
                return 0.0 if _fork() else 0.5
            case "fork and raise":
                if not _fork():
                    raise ValueError("in the child")
            case "fork in C":  # of which Python is not told
                import ctypes

                return 0.0 if ctypes.CDLL(None).fork() else 0.5
            case "fork and write":
                if not _fork():
                    exec(JUNK)
                    _exit()
            case "multiprocessing":
                import multiprocessing

                child = multiprocessing.get_context("fork").Process(target=exec, args=(JUNK, {}))
                child.start()
                child.join()
            case "program":
                subprocess.run([sys.executable, "-c", JUNK], close_fds=False, check=True)
            case "program through /proc":
                subprocess.run([sys.executable, "-c", THROUGH_PROC], close_fds=False, check=True)
            case "write":
                exec(JUNK)
            case "write later":
                import threading

                threading.Timer(0.05, exec, args=(JUNK, {})).start()
            case "close":
                import os

                os.closerange(3, 1024)
            case "slow":
                import time

                time.sleep(0.1)
        return 0.0


THROUGH_PROC = """
import glob, os
parent = os.getppid()
outer = open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1]
for pid in (parent, outer):
    for name in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            kind = os.readlink(name)
            if kind.startswith(("pipe:", "socket:")):
                with open(name, "wb", buffering=0) as channel:
                    channel.write(bytes(64))
        except OSError:
            pass
"""


def _fork():
    import os

    return os.fork()


def _exit():
    import os

    os._exit(0)


class NoSettings(Settings):
    pass


def build_zero(settings, context):
    return Zero()


@pytest.fixture
def zero():
    component = RewardComponent(
        name="zero", settings=NoSettings, build=build_zero, summary="for tests"
    )
    selection = Selection(family="reward", component=component, settings=NoSettings())
    return RewardPart(selection=selection, deadline=30.0)


HARMLESS = (
    *("fork", "fork and raise", "fork in C", "fork and write", "multiprocessing"),
    *("program", "program through /proc"),
)
CAUGHT = {
    "write": "something else has written to the channel of the reward process",
    "close": "the process ended with exit code 1",
}


@pytest.mark.parametrize("attack", [*HARMLESS, *CAUGHT])
async def test_no_episode_gets_what_was_not_its_reward(pool_of, zero, episodes, attack):
    pool = pool_of({"zero": zero})
    for others in (2, 0):  # what is left over at the end would be read by a next call
        scored = episodes("slow", "slow", attack, *["slow"] * others)
        await pool.score(scored)
        for index, episode in enumerate(scored):
            if attack in CAUGHT and index == 2:
                assert episode.failures == {"zero": CAUGHT[attack]}
                assert episode.rewards == {}
            else:
                assert episode.rewards == {"zero": 0.0}, episode.failures
    await pool.score(episodes("slow"))
    metrics = pool.metrics()
    count = 2 if attack in CAUGHT else 0
    assert (metrics["failures/zero"], metrics["lost"], metrics["retried"]) == (count,) * 3


async def test_what_is_written_later_costs_no_innocent_sample_its_reward(pool_of, zero, episodes):
    pool = pool_of({"zero": zero})
    scored = episodes("write later", "slow", "slow")
    await pool.score(scored)
    assert [episode.rewards for episode in scored] == [{"zero": 0.0}] * 3
    assert pool.metrics()["failures"] == 0
    assert pool.metrics()["retried"] == 1
