"""A reward that does what the completion says, and pools of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forge_core import (
    BuildContext,
    DistributedSection,
    Episode,
    ModelSection,
    Placement,
    RewardComponent,
    RewardPart,
    Selection,
    Settings,
    Task,
    TrainingSection,
    UsageError,
)
from forge_rewards.pool import RewardPool


def run_apart(way, file):
    """Start programs as sandboxes do, with a grandchild each, and write down their ids."""
    script = f"sleep 600 & echo $! $$ >>{file}; wait"
    match way.removesuffix("-ends"):
        case "timeout":
            subprocess.Popen(["timeout", "500", "sh", "-c", script])
        case "group":
            subprocess.Popen(["sh", "-c", script], process_group=0)
        case "session":
            subprocess.Popen(["sh", "-c", script], start_new_session=True)
        case "daemon":  # whose parent ends at once
            subprocess.run(["sh", "-c", f"setsid sh -c '{script}' &"], check=True)
        case "double fork":
            if not os.fork():
                os.setsid()
                if not os.fork():
                    os.execvp("sh", ["sh", "-c", script])
                os._exit(0)
    while not (Path(file).exists() and len(Path(file).read_text().split()) == 2):
        time.sleep(0.01)


class ScriptedSettings(Settings):
    fault: str = ""


class Scripted:
    """``command argument`` in the completion says what happens; a number is the reward."""

    def __call__(self, sample):
        command, _, argument = sample.completion.partition(" ")
        match command:
            case "hang":
                while True:
                    pass
            case "spawn":
                child = subprocess.Popen(["sleep", "600"])
                Path(argument).write_text(f"{os.getpid()} {child.pid}")
                while True:
                    pass
            case "sandbox":  # the usual ways to run a program apart
                way, _, file = argument.rpartition(" ")
                run_apart(way, file)
                if way.endswith("ends"):
                    os._exit(1)
                while True:
                    pass
            case "sleep":
                time.sleep(float(argument))
                return 1.0
            case "exit":
                os._exit(int(argument))
            case "sys.exit":
                sys.exit(int(argument))
            case "segfault":
                ctypes.string_at(0)
            case "exit-once":  # the first process that judges it dies
                mark = Path(argument)
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return 1.0
            case "raise":
                raise ValueError(argument)
            case "print":
                print(argument)
                os.write(1, b"to the descriptor\n")
                subprocess.run(["echo", "from a child"], check=True)
                return float(len(sys.stdin.read()))
            case "flood":
                print("x" * int(argument))
                return 1.0
            case "return":
                return eval(argument)
            case "pid":
                return os.getpid()
            case "imported":
                return float(argument in sys.modules)
            case "answer":
                return float(sample.task.answer == argument)
        return float(command)


def build_scripted(settings, context):
    match settings.fault:
        case "usage":
            raise UsageError("scripted.fault: choose another one")
        case "bug":
            raise KeyError("missing")
        case "exit":
            os._exit(7)
    return Scripted()


def scripted(weight=1.0, deadline=30.0, failure_reward=0.0, fault=""):
    component = RewardComponent(
        name="scripted", settings=ScriptedSettings, build=build_scripted, summary="for tests"
    )
    selection = Selection(
        family="reward", component=component, settings=ScriptedSettings(fault=fault)
    )
    return RewardPart(
        selection=selection, weight=weight, deadline=deadline, failure_reward=failure_reward
    )


def episodes_of(*completions):
    return [
        Episode(
            task=Task(id=str(index), prompt="1+1=", answer="2"),
            turns=[],
            prompt_text="1+1=",
            completion_texts=[completion],
        )
        for index, completion in enumerate(completions)
    ]


def gone(pid):
    """Whether a process has ended (a zombie that is not reaped has)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_gone(*pids, seconds=120.0):
    limit = time.monotonic() + seconds
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < limit, [pid for pid in pids if not gone(pid)]
        time.sleep(0.01)


@pytest.fixture
def part():
    """Makes a ``RewardPart`` of the scripted reward."""
    return scripted


@pytest.fixture
def episodes():
    """Makes one episode of each completion text."""
    return episodes_of


@pytest.fixture
def until_gone():
    """Fails unless the processes end soon."""
    return wait_gone


@pytest.fixture
def context():
    return BuildContext(
        model=ModelSection(), training=TrainingSection(), distributed=DistributedSection()
    )


@pytest.fixture
async def pool_of(context, tmp_path):
    """``pool_of(parts, confinement=None, replicas=1, ...)``: closed at the end.

    Events are on ``pool.heard``.
    """
    pools = []

    def make(parts, confinement=None, **placement):
        heard = []
        pool = RewardPool(
            parts,
            context,
            placement=Placement(**placement),
            log=tmp_path / "rewards.log",
            confinement=confinement,
            on_event=lambda kind, message, data: heard.append((kind, message)),
        )
        pool.heard = heard
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        await pool.close()
