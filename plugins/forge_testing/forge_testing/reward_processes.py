"""For tests that kill what judges: a reward that takes its time, and the processes it runs in."""

from __future__ import annotations

from pathlib import Path

from forge_testing.distributions import FakeSite
from forge_testing.runs import Run

_SLOW = '''
    """Reward ``slow``: takes its time, so that its process is killed while it judges."""

    import time
    import zlib

    from forge_core import RewardComponent, Settings, hookimpl


    def slow(sample):
        time.sleep(0.005)
        return zlib.crc32(sample.completion.encode()) / 2**32


    def build(settings, context):
        return slow


    @hookimpl
    def forge_rewards():
        yield RewardComponent(name="slow", settings=Settings, build=build, summary="takes its time")
'''


def install_slow_reward(folder: Path) -> None:
    """Install a distribution with reward ``slow`` where commands look that run in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    FakeSite(folder)("slow-reward", _SLOW)


def reward_processes(run: Run) -> list[list[int]]:
    """Every process of a run that judges: its id, its parent's, and so on up to the command's."""
    parents: dict[int, int] = {}
    judging = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text().rpartition(")")[2].split()
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            parents[int(process.name)] = int(stat[1])
            if b"forge_rewards.child" in words and stat[0] not in "ZX":
                judging.append(int(process.name))
    lines = (_line_of_descent(pid, parents) for pid in judging)
    return [line[: line.index(run.process.pid) + 1] for line in lines if run.process.pid in line]


def _line_of_descent(pid: int, parents: dict[int, int]) -> list[int]:
    line = []
    while pid in parents:
        line.append(pid)
        pid = parents[pid]
    return line
