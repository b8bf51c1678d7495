"""A component of each family that fails in every way, in the middle of a run."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core import Forge, RewardComponent, hookimpl
from forge_testing.context import component
from forge_testing.runs import lines_of, write_config
from tests.chaos.cases import PATIENCE, Area, Command, Outcome, Wrong, speaks_clearly
from tests.chaos.subject import Digits, NoSettings, Subject, World, check_equal, subject_config


@dataclass(frozen=True)
class Target:
    """A component to wrap.

    Args:
        wraps: the component that does the work until it is told to fail.
        methods: where it may fail.
        section: of the config.
    """

    wraps: str
    methods: tuple[str, ...]
    section: str


FAMILIES = {
    "dataset": Target("arithmetic", ("__len__", "__getitem__"), "dataset"),
    "environment": Target("single_turn", ("start", "respond"), "environment"),
    "reward": Target("digits", ("__call__",), "rewards"),
    "loss": Target("grpo", ("__call__",), "loss"),
    "recipe": Target("grpo", ("plan", "run"), "recipe"),
    "tracker": Target("console", ("start", "step", "event", "episodes", "finish"), "trackers"),
    "generator": Target("torch", ("generate", "update_weights", "close"), "generator"),
    "trainer": Target("torch", ("train_step", "logprobs", "publish", "save", "close"), "trainer"),
    "transport": Target("memory", ("publish", "drop", "close"), "transport"),
}

HOW = (
    "raise", "raise", "exit 0", "exit 3", "cancelled", "stop iteration", "no words", "hang",
    "none", "text", "not a number", "print", "fork",
)  # fmt: skip

HANDLED = ("reward", "environment", "dataset")
"""Families whose failures may cost episodes instead of the run, if the run says so."""

HANG_LIMIT = 60.0
"""Seconds within which ctrl-C, and then a second one, end a run whose component hangs."""


@dataclass(frozen=True)
class Plan:
    """What goes wrong where. Travels to the processes of rewards.

    Args:
        method: of the component, or ``build``.
        how: of ``HOW``.
        at: the call of the method that fails, from 1.
    """

    method: str
    how: str
    at: int


def misbehave(how: str, result: Any) -> Any:
    """Do it; where it is an answer, that answer."""
    if how == "raise":
        raise ValueError("hostile: told to fail\nin two lines")
    if how == "no words":
        raise KeyError
    if how.startswith("exit"):
        sys.exit(int(how[-1]))
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "stop iteration":
        raise StopIteration("hostile")
    if how == "hang":
        time.sleep(3600)
    if how == "print":
        for _ in range(200):
            print("hostile " * 1000)
        os.write(2, b"\xff\x00\x1b[2J" * 20000)
    if how == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return {"none": None, "text": "hostile", "not a number": float("nan")}.get(how, result)


class Calls:
    """Counts the calls of a method, and knows which one fails."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._count = 0

    def due(self, method: str) -> bool:
        if method != self._plan.method:
            return False
        self._count += 1
        return self._count == self._plan.at


def wrapped(inner: Any, plan: Plan, methods: tuple[str, ...]) -> Any:
    """An object like ``inner`` that misbehaves at the planned call."""
    calls = Calls(plan)

    def method(name: str) -> Callable[..., Any]:
        original = getattr(inner, name)

        async def start(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = await original(*args, **kwargs)
            if calls.due("start"):
                return misbehave(plan.how, result)
            if plan.method == "respond":
                return wrapped(result, plan, ("respond",)) if calls.due("respond") else result
            return result

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not calls.due(name):
                result = original(*args, **kwargs)
            elif inspect.iscoroutinefunction(original):

                async def later() -> Any:
                    return misbehave(plan.how, await original(*args, **kwargs))

                return later()
            else:
                answer = misbehave(plan.how, INHERIT)
                result = original(*args, **kwargs) if answer is INHERIT else answer
            return result

        return start if name == "start" and inspect.iscoroutinefunction(original) else call

    own = {name: method(name) for name in methods if hasattr(inner, name)}
    own["__getattr__"] = lambda self, name: getattr(inner, name)
    return type("Hostile", (), own)()


INHERIT = "(what the component answers itself)"


def build(plan: Plan, component: Any, methods: tuple[str, ...], settings: Any, context: Any) -> Any:
    """The wrapped component; or not even that."""
    if plan.method == "build":
        answer = misbehave(plan.how, INHERIT)
        if answer is not INHERIT:
            return answer
    inner = component.build(settings, context)
    if isinstance(inner, Digits):
        return HostileReward(inner, plan)
    return wrapped(inner, plan, methods)


class HostileReward:
    """The same for a reward, which has to be picklable."""

    def __init__(self, inner: Digits, plan: Plan) -> None:
        self._inner, self._calls, self._plan = inner, Calls(plan), plan

    def __call__(self, sample: Any) -> Any:
        result = self._inner(sample)
        return misbehave(self._plan.how, result) if self._calls.due("__call__") else result


class Plugin(Subject):
    """Contributes the hostile component, and what the undisturbed run has."""

    def __init__(self, family: str, plan: Plan) -> None:
        target = FAMILIES[family]
        if family == "reward":
            inner: Any = RewardComponent(
                name="digits", settings=NoSettings, build=lambda *_: Digits(), summary=""
            )
        else:
            inner = World.app.plugins.catalog.get(family, target.wraps)
        says = {"reach": inner.reach} if family == "transport" else {}
        made = component(
            family,
            functools.partial(build, plan, inner, target.methods),
            name="hostile",
            settings=inner.settings,
            **says,
        )
        hook = "forge_losses" if family == "loss" else f"forge_{family}s"

        def contribute() -> Any:
            yield made

        if family == "reward":
            self.forge_rewards = hookimpl(contribute)  # type: ignore[method-assign]
        else:
            setattr(self, hook, hookimpl(contribute))


def config_with(family: str, output: Path) -> dict[str, Any]:
    """The undisturbed run's config with the hostile component in its place."""
    config = subject_config(output)
    section = FAMILIES[family].section
    if family == "reward":
        config["rewards"] = {"digits": {"use": "hostile", "deadline": 5}}
    elif family == "tracker":
        config["trackers"]["hostile"] = {"view": "plain"}
    elif family in ("recipe", "loss"):
        config["stages"]["grpo"][section]["use"] = "hostile"
    else:
        config[section] = {**config.get(section, {}), "use": "hostile"}
    return config


def case(draw: random.Random, number: int, folder: Path) -> str:
    """One family, one method, one way to fail."""
    family = list(FAMILIES)[number % len(FAMILIES)]
    how = HOW[number // len(FAMILIES) % len(HOW)]
    methods = (*FAMILIES[family].methods, "build")
    plan = Plan(draw.choice(methods), how, draw.randint(1, 4))
    tried = f"{family}: {how}"
    try:
        _attempt(family, plan, folder)
    except Wrong as error:
        wrong = Wrong(f"{family}.{plan.method}, call {plan.at}: {how}: {error}")
        wrong.tried = tried  # type: ignore[attr-defined]
        raise wrong from error
    return tried


def _attempt(family: str, plan: Plan, folder: Path) -> None:
    app = Forge(plugins=[Plugin(family, plan)])
    config = write_config(config_with(family, folder / "runs"), folder / "config.yaml")
    command = Command(["run", str(config)], folder, app)
    interrupted = False
    if plan.how == "hang" and family != "reward":
        interrupted = not _ended(command, 6.0)
        for _ in range(2):
            if not _ended(command, 1.0):
                command.send(signal.SIGINT)
    outcome = command.end(HANG_LIMIT if interrupted else PATIENCE)
    _judge(family, plan, outcome, folder, interrupted)


def _judge(family: str, plan: Plan, outcome: Outcome, folder: Path, interrupted: bool) -> None:
    if plan.how != "print":
        speaks_clearly(outcome)
    runs = sorted((folder / "runs").glob("*")) if (folder / "runs").is_dir() else []
    if outcome.code == 0:
        if not runs:
            raise Wrong(f"exit code 0 and no run: {outcome}")
        try:
            check_equal(runs[0])
        except Wrong:
            told = [line for line in lines_of(runs[0] / "events.jsonl") if _names(line)]
            if family not in HANDLED or not told:
                raise
            check_equal(runs[0], only=("outcome",))
    elif outcome.code == 130 and not interrupted:
        raise Wrong(f"interrupted without a signal: {outcome}")
    elif outcome.code != 130 and not any(
        word in outcome.err for word in ("hostile", family, f"{plan.method}()")
    ):
        raise Wrong(f"does not name the {family}: {outcome}")
    elif outcome.code != 130 and family == "tracker" and plan.method != "build":
        raise Wrong(f"a tracker that fails ends the run: {outcome}")


def _names(line: dict[str, Any]) -> bool:
    text = json.dumps(line)
    return line["kind"] != "run_started" and ("hostile" in text or "digits" in text)


def _ended(command: Command, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if command.poll():
            return True
        time.sleep(0.02)
    return False


AREA = Area(
    name="hostile",
    about="a component of each family that raises, exits, hangs, answers nonsense, prints, forks",
    case=case,
    ci=60,
)
