"""A case, an area of cases, and the processes in which cases run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_core.cli import main
from forge_local.processes.descendants import adopt_orphans, kill_descendants
from tests.chaos import faults

PROGRESS = 60.0
"""Seconds between two lines of how far an area is."""

PATIENCE = 600.0
"""Seconds after which a case is wrong because it hangs; a busy machine is slow, not hung."""


class Wrong(Exception):
    """What a case found. The message is for a person who has to repeat it."""


@dataclass(frozen=True, kw_only=True)
class Area:
    """Cases of one kind.

    Args:
        name: on the command line.
        about: one line.
        case: does the case of a number in an empty folder; returns what was tried in a few words;
            raises ``Wrong``. It draws everything from the generator it is given.
        ci: cases in CI.
        needs: why the area cannot run here; empty: it can.
        count: how many things a case tries; ``tried`` counts these.
    """

    name: str
    about: str
    case: Callable[[random.Random, int, Path], str]
    ci: int
    needs: Callable[[], str] = field(default=lambda: "")
    count: int = 1


@dataclass(frozen=True)
class Outcome:
    """What a ``forge`` command came to in a process of its own.

    Args:
        code: exit code; negative: the signal that killed it.
        out: standard output.
        err: standard error.
        seconds: wall-clock.
    """

    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        said = (self.err.strip() or self.out.strip())[-600:]
        return f"exit code {self.code} after {self.seconds:.1f} s: {said}"


class Command:
    """A ``forge`` command in a fork of this process, which has everything imported already.

    Args:
        arguments: of the command.
        folder: working directory; its output goes to files there.
        app: the app that has discovered the plugins.
        before: called in the child before the command, to set limits or faults.
    """

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        app: Any,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._started = time.monotonic()
        self._out, self._err = folder / ".stdout", folder / ".stderr"
        for output in (self._out, self._err):
            output.unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(arguments, folder, app, before)
        self._code: int | None = None
        # Until then it is a fork of ours and no command.
        while not self._err.exists() and not self.poll():
            time.sleep(0.001)

    def _become(self, arguments: list[str], folder: Path, app: Any, before: Any) -> None:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.environ["FORGE_CHAOS_CASE"] = str(folder)
            for descriptor, path in ((1, self._out), (2, self._err)):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(file, descriptor)
                os.close(file)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            before()
            code = main(arguments, app=app)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except KeyboardInterrupt:  # it came before the command, which catches its own
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):
                    stream.flush()
            os._exit(code)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def send(self, number: int) -> None:
        """Send a signal to the command alone, if it has not ended."""
        if not self.poll():
            os.kill(self.pid, number)

    def end(self, limit: float = PATIENCE) -> Outcome:
        """Wait for its end.

        Raises:
            Wrong: it has not ended within the limit.
        """
        deadline = self._started + limit
        while not self.poll():
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise Wrong(f"hangs: no end within {limit:g} s; {_tail(self._out, self._err)}")
            time.sleep(0.01)
        assert self._code is not None
        return Outcome(
            self._code,
            self._out.read_text("utf-8", errors="replace"),
            self._err.read_text("utf-8", errors="replace"),
            time.monotonic() - self._started,
        )


def _tail(*files: Path) -> str:
    return " | ".join(file.read_text("utf-8", errors="replace")[-300:] for file in files)


def speaks_clearly(outcome: Outcome, but: int = 0) -> None:
    """A command that did not succeed says so in one line, and none shows a traceback.

    Args:
        outcome: of the command.
        but: an exit code that is expected and needs no words.

    Raises:
        Wrong: it did not.
    """
    if "Traceback (most recent call last)" in outcome.out + outcome.err:
        raise Wrong(f"a traceback: {outcome}")
    if outcome.code not in (0, 1, 2, 3, 130, but):
        raise Wrong(f"an exit code that means nothing: {outcome}")
    told = re.search(r"^(error|Error): \S", outcome.err, re.MULTILINE)
    if outcome.code not in (0, 130, but) and not told:
        raise Wrong(f"no line that says why: {outcome}")


@dataclass
class Tally:
    """What an area came to."""

    tried: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """Number of the case, and what it found."""
    kinds: dict[str, int] = field(default_factory=dict)
    """What was tried -> how often."""
    seconds: float = 0.0
    skipped: str = ""


def run_area(area: Area, numbers: Iterator[int], seed: int, scratch: Path, jobs: int) -> Tally:
    """Do the cases of these numbers, so many at a time, and print what is wrong as it is found."""
    tally = Tally(skipped=area.needs())
    if tally.skipped:
        return tally
    started = told = time.monotonic()
    running: dict[int, _Case] = {}
    more = True
    while running or more:
        while more and len(running) < jobs:
            number = next(numbers, None)
            if number is None:
                more = False
                break
            case = _Case(area, number, seed, scratch / f"{area.name}-{number}")
            running[case.pid] = case
        if not running:
            break
        select.select([case.pipe for case in running.values()], [], [], 0.5)
        if time.monotonic() - told > PROGRESS:
            told = time.monotonic()
            print(
                f"{area.name:<10} so far {tally.tried:>6,}  wrong {len(tally.wrong):>3}  "
                f"in {told - started:.0f} s",
                flush=True,
            )
        for pid, case in list(running.items()):
            verdict = case.verdict()
            if verdict is None:
                continue
            del running[pid]
            tally.tried += area.count
            tried, wrong = verdict
            tally.kinds[tried] = tally.kinds.get(tried, 0) + 1
            if wrong:
                tally.wrong.append((case.number, wrong))
                print(f"WRONG {area.name} case {case.number} ({tried}): {wrong}")
                print(f"  again: {repeat(area, case.number, seed)}", flush=True)
    tally.seconds = time.monotonic() - started
    return tally


def repeat(area: Area, number: int, seed: int) -> str:
    """The command that does one case again."""
    return f"scripts/chaos.sh --area {area.name} --seed {seed} --case {number} --keep"


class _Case:
    """A case in a process of its own, which leads a group of processes."""

    def __init__(self, area: Area, number: int, seed: int, folder: Path) -> None:
        self.number = number
        self._folder = folder
        self._deadline = time.monotonic() + 2 * PATIENCE
        self._said = b""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.pipe, theirs = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            tried, wrong = "nothing", ""
            try:
                os.setpgid(0, 0)
                adopt_orphans()
                tried = area.case(random.Random(f"{seed}-{area.name}-{number}"), number, folder)
                left = _left_running(os.getpid())
                wrong = f"left running: {left}" if left else ""
            except Wrong as error:
                wrong = str(error)
                tried = getattr(error, "tried", tried)
            except BaseException:
                wrong = "the case itself failed: " + traceback.format_exc()
            kill_descendants(os.getpid())
            with contextlib.suppress(BrokenPipeError):
                os.write(theirs, json.dumps([tried, wrong[-2000:]]).encode())
            os._exit(0)
        os.close(theirs)

    def verdict(self) -> tuple[str, str] | None:
        """What was tried and what was wrong (may be empty); None while it is running."""
        while select.select([self.pipe], [], [], 0)[0]:
            part = os.read(self.pipe, 65536)
            if not part:
                os.close(self.pipe)
                os.waitpid(self.pid, 0)
                if not Keep.folders:
                    shutil.rmtree(self._folder, ignore_errors=True)
                tried, wrong = json.loads(self._said) if self._said else ("", "the case died")
                return tried, wrong
            self._said += part
        if time.monotonic() > self._deadline:
            kill_descendants(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._deadline = float("inf")
            self._said = json.dumps(["", "the case hangs"]).encode()
        return None


class Keep:
    """Whether the folders of cases are kept, to look into."""

    folders = False


def _left_running(root: int, patience: float = 15.0) -> str:
    """What the commands of a case have left running, in words; waits for what is ending."""
    from forge_local.processes.descendants import descendants

    deadline = time.monotonic() + patience
    while True:
        while _reaped():
            pass
        left = descendants(root)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    words = []
    for pid in left:
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            words.append(f"{pid} {line[:120]}")
    return "; ".join(words)


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def limited(what: int, amount: int) -> Callable[[], None]:
    """Sets a resource limit of the process, for ``Command(before=...)``."""
    return lambda: resource.setrlimit(what, (amount, amount))


__all__ = ["Area", "Command", "Outcome", "Wrong", "faults", "limited", "run_area", "speaks_clearly"]
