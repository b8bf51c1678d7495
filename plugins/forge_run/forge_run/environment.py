"""A stage's environment under the rules of its section: deadline, retries, what a failure costs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from forge_core import (
    Episode,
    EpisodeFailed,
    FinishReason,
    ForgeError,
    Prompt,
    Response,
    RunFailed,
    Task,
)
from forge_core.contracts.blame import contained, described, title
from forge_rollouts.places import Places
from forge_services.deadline import await_within

if TYPE_CHECKING:
    from forge_core import Environment, EnvironmentKeys, Interaction, Selection
    from forge_services.watchdog import EventSink

MOST_FAILED_GROUPS = 32
"""Groups in a row of which every episode failed, after which the run fails."""

CLOSE_LIMIT = 30.0
"""Seconds that a close may take, if the section's deadline is not shorter."""

Waiting = Callable[[str, str], AbstractContextManager[None]]
"""Registers a wait for something, with a detail, with the watchdog."""


class GuardedEnvironment:
    """An environment whose episodes cost at most what the config says.

    What it raises, and what hangs, is an ``EpisodeFailed`` after the retries. An environment that
    answers no episode at all fails the run, for that is a bug and not a hard task.

    Args:
        selection: which component it is.
        keys: deadline, retries and outcome.
        environment: what the component built.
        waiting: registers waits with the watchdog.
        on_event: called with episodes that failed.
    """

    def __init__(
        self,
        selection: Selection[Environment],
        keys: EnvironmentKeys,
        environment: Environment,
        *,
        waiting: Waiting | None = None,
        on_event: EventSink | None = None,
    ) -> None:
        self.keys = keys
        self.max_turns = environment.max_turns
        self.shared_seed: bool = getattr(environment, "shared_seed", True)
        self.places = Places(keys.concurrency) if keys.concurrency is not None else None
        """Of interactions; None: as many as there are."""
        self.retried = 0
        """Calls that were made again."""
        self._title = title(selection)
        self._environment = environment
        self._waiting = waiting or (lambda what, detail: nullcontext())
        self._on_event = on_event
        self._failed_in_a_row: list[Episode] = []
        self._calls_in_a_row = 0
        self._answered = 0
        """Answers since the last check."""
        self._worked = False

    async def start(self, task: Task, seed: int) -> GuardedInteraction:
        """Begin an episode.

        Raises:
            EpisodeFailed: it could not be begun.
            RunFailed: likewise, where the config says so; or what was returned is no interaction.
        """
        for attempt in range(self.keys.retries + 1):
            try:
                return GuardedInteraction(self, task, seed, await self.begin(task, seed))
            except ForgeError:
                raise
            except Exception as error:
                self.retried += attempt < self.keys.retries
                failure = error
        raise self.failure(task, "start", failure)

    def take_retried(self) -> int:
        """How many calls were made again since this was last asked."""
        retried, self.retried = self.retried, 0
        return retried

    async def begin(self, task: Task, seed: int) -> Interaction:
        """One call of ``start``."""

        def start() -> Awaitable[Interaction]:
            return self._environment.start(task, seed)

        with self._waiting(f"{self._title} to start", f"task {task.id!r}"), contained():
            interaction = await await_within(self.keys.deadline, start)
        if not hasattr(interaction, "prompt") or not callable(
            getattr(interaction, "respond", None)
        ):
            raise RunFailed(
                f"{self._title}: start returned a {type(interaction).__name__}; expected an object "
                f"with prompt and respond (task {task.id!r})"
            )
        return interaction

    async def ask(
        self, interaction: Interaction, said: str, finish_reason: FinishReason, where: str
    ) -> Response:
        """One call of ``respond``.

        Args:
            interaction: the component's own.
            said: the completion.
            finish_reason: how it ended.
            where: task and turn, for messages.
        """

        def respond() -> Awaitable[Response | str | None]:
            answer = interaction.respond(said, finish_reason)
            if not inspect.isawaitable(answer):
                raise RunFailed(
                    f"{self._title}: respond must be a coroutine: write `async def` ({where})"
                )
            return answer

        with self._waiting(f"{self._title} to respond", where), contained():
            answer = await await_within(self.keys.deadline, respond)
        try:
            response = Response.of(answer)
        except (TypeError, ValueError) as error:
            raise RunFailed(f"{self._title}: {error} ({where})") from None
        self._answered += 1
        return response

    async def close(self, interaction: Interaction, task: Task) -> None:
        """Let an interaction that holds something give it back. What goes wrong is an event."""
        close = getattr(interaction, "close", None)
        if close is None:
            return
        try:
            with self._waiting(f"{self._title} to close", f"task {task.id!r}"), contained():
                await await_within(min(self.keys.deadline, CLOSE_LIMIT), close)
        except Exception as error:
            if self._on_event is not None:
                self._on_event(
                    "warning",
                    f"{self._title}: close failed (task {task.id!r}): {described(error)}",
                    {"task": task.id},
                )

    def failure(self, task: Task, method: str, error: Exception, turn: int = 0) -> ForgeError:
        """What an episode ends with that failed for good."""
        where = f"task {task.id!r}" + (f", turn {turn}" if turn else "")
        message = f"{self._title}: {method} failed ({where}): {described(error)}"
        outcome = self.keys.on_failure
        failure: ForgeError
        if outcome == "fail":
            failure = RunFailed(message)
        else:
            failure = EpisodeFailed(message, reward=None if outcome == "drop" else float(outcome))
        failure.__cause__ = error
        return failure

    def check(self, episodes: Sequence[Episode]) -> None:
        """Report the failures among episodes that were played together.

        Raises:
            RunFailed: the environment answered none of them, or none of many such calls in a row.
        """
        failed = [episode for episode in episodes if episode.environment_failure]
        if failed and self._on_event is not None:
            causes = Counter(episode.environment_failure for episode in failed)
            became = (
                "left out" if self.keys.on_failure == "drop" else f"reward {self.keys.on_failure:g}"
            )
            message = (
                f"{len(failed)} of {len(episodes)} episodes failed in the environment ({became}): "
                f"{_listed(causes)}"
            )
            data = {"failed": len(failed), "episodes": len(episodes), "causes": dict(causes)}
            self._on_event("environment_failed", message, data)
        answered, self._answered = self._answered, 0
        if answered:
            self._failed_in_a_row, self._calls_in_a_row = [], 0
            self._worked = True
        elif failed:
            self._failed_in_a_row = [*self._failed_in_a_row, *failed][-1000:]
            self._calls_in_a_row += 1
            tasks = {episode.task.id for episode in self._failed_in_a_row}
            several = len({episode.task.id for episode in failed}) > 1
            first = not self._worked and len(tasks) > 1
            if several or first or self._calls_in_a_row >= MOST_FAILED_GROUPS:
                raise self._hopeless()

    def check_worked(self) -> None:
        """The environment has answered once, if anything of it has failed.

        Raises:
            RunFailed: it never has.
        """
        if not self._worked and self._failed_in_a_row:
            raise self._hopeless()

    def _hopeless(self) -> RunFailed:
        failed = self._failed_in_a_row
        causes = Counter(episode.environment_failure for episode in failed)
        (cause, _), *others = causes.most_common()
        more = f" (and {len(others)} other failure{'s' * (len(others) > 1)})" if others else ""
        return RunFailed(f"{len(failed)} episodes failed and none was answered: {cause}{more}")


class GuardedInteraction:
    """One episode of a ``GuardedEnvironment``."""

    def __init__(
        self, environment: GuardedEnvironment, task: Task, seed: int, interaction: Interaction
    ) -> None:
        self.prompt: Prompt = interaction.prompt
        self.agent: str = getattr(interaction, "agent", "")
        self._environment = environment
        self._task = task
        self._seed = seed
        self._interaction = interaction
        self._closed = False
        self._said: list[tuple[str, FinishReason, Response]] = []

    async def respond(self, completion: str, finish_reason: FinishReason) -> Response:
        """The environment's answer.

        Raises:
            EpisodeFailed: there is none, after all retries.
            RunFailed: likewise, where the config says so; or it is no answer.
        """
        environment, turn = self._environment, len(self._said) + 1
        where = f"task {self._task.id!r}, turn {turn}"
        for attempt in range(environment.keys.retries + 1):
            try:
                if attempt:
                    await self.close()
                    await self._play_again()
                answer = await environment.ask(self._interaction, completion, finish_reason, where)
            except ForgeError:
                raise
            except Exception as error:
                environment.retried += attempt < environment.keys.retries
                failure = error
            else:
                self._said.append((completion, finish_reason, answer))
                return answer
        raise environment.failure(self._task, "respond", failure, turn)

    async def close(self) -> None:
        """Close the environment's own interaction. Safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._environment.close(self._interaction, self._task)

    async def _play_again(self) -> None:
        """Bring a new interaction to the place where this one failed, in an unknown state."""
        self._interaction = await self._environment.begin(self._task, self._seed)
        self._closed = False
        for turn, (said, finish_reason, heard) in enumerate(self._said, start=1):
            where = f"task {self._task.id!r}, turn {turn}, played again"
            answer = await self._environment.ask(self._interaction, said, finish_reason, where)
            if answer != heard:
                raise ValueError(
                    f"turn {turn} was answered differently when it was played again, so that the "
                    "episode cannot go on"
                )


def _listed(causes: Counter[str]) -> str:
    shown = ", ".join(f"{cause} ({times} times)" for cause, times in causes.most_common(3))
    more = len(causes) - 3
    return f"{shown}, and {more} others" if more > 0 else shown
