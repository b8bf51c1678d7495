"""Everything Forge raises on purpose, and the exit code each kind ends a command with.

Failures are raised, never returned as values. A ``ForgeError`` is a message for a person: one line,
what is wrong, where, and what is allowed. Anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence


class ForgeError(Exception):
    """Base of all errors meant for a person. The command prints ``str(error)`` and exits."""

    exit_code: int = 1
    log_tail: tuple[str, ...] = ()
    """Last lines of the log of the process that failed."""


class UsageError(ForgeError):
    """The command, the config or an input file is wrong; nothing was trained (exit code 2)."""

    exit_code = 2


class ConfigError(UsageError):
    """One or more problems in a config, one line each."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))


class PluginError(UsageError):
    """A selected component cannot be used: unknown, ambiguous, or its plugin is broken."""


class DataError(UsageError):
    """A data file, prompt or model folder is not what it must be (names file and line)."""


class PromptRefused(DataError):
    """No completion of this prompt can be sampled: it is empty, the chat template or the tokenizer
    refuses it, or it is too long. Other prompts may be fine."""


class NoRoom(PromptRefused):
    """The prompt leaves no room for a completion in the window."""


class RunFailed(ForgeError):
    """The run cannot go on: the first failure, with the component and replica it came from.

    Args:
        message: what happened, one line.
        component: such as ``trainer torch``; empty when it was the recipe itself.
        replica: index of the replica, or None.
        log_tail: last lines of that process's log.
    """

    def __init__(
        self,
        message: str,
        *,
        component: str = "",
        replica: int | None = None,
        log_tail: Sequence[str] = (),
    ) -> None:
        self.message = message
        self.component = component
        self.replica = replica
        self.log_tail = tuple(log_tail)
        where = component if replica is None else f"{component} (replica {replica})"
        super().__init__(f"{where}: {message}" if where else message)


class WeightsNotFinite(RunFailed):
    """A weight has become infinite or NaN. Raised by a trainer, before it saves or publishes."""


class EpisodeFailed(ForgeError):
    """An environment could not play an episode to its end.

    Args:
        message: which environment, at which task and turn, and why.
        reward: what the episode gets; None: it is left out.
    """

    def __init__(self, message: str, *, reward: float | None = None) -> None:
        self.reward = reward
        super().__init__(message)


class RunStopped(ForgeError):
    """The run ended in good order, short of its target (exit code 3)."""

    exit_code = 3


class RunInterrupted(ForgeError):
    """Ctrl-C, SIGTERM or SIGHUP: stopped at a step boundary, after a checkpoint (exit code 130)."""

    exit_code = 130


class WriterLost(ForgeError):
    """Another process has taken over the run folder; nothing more is written to it."""


class ReplicaDied(ForgeError):
    """A replica is gone: its process has ended, or its engine elsewhere cannot be reached.

    Raised by runtimes, and by generators whose engine is elsewhere and away for a while, from any
    method or from ``build``. The service repeats the call on another replica or waits for a new one
    (``outage_limit``); a call of a session, or of a service without ``retry``, raises it.

    Args:
        message: what happened, one line.
        replica: index of the replica.
        log_tail: last lines of that process's log.
    """

    def __init__(
        self, message: str, *, replica: int | None = None, log_tail: Sequence[str] = ()
    ) -> None:
        self.replica = replica
        self.log_tail = tuple(log_tail)
        super().__init__(message)


class FanoutError(ForgeError):
    """A fan-out failed on some replicas; names each of them with its cause."""

    def __init__(self, method: str, failures: dict[int, BaseException], total: int) -> None:
        self.method = method
        self.failures = failures
        named = "; ".join(
            f"replica {index}: {type(error).__name__}: {error}"
            for index, error in sorted(failures.items())
        )
        super().__init__(f"{method} failed on {len(failures)} of {total} replicas: {named}")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or another signal asked to stop at once. A ``KeyboardInterrupt`` that a component
    raises is not of this class."""


class Escaped(Exception):
    """A component raised what is no ``Exception``, such as ``SystemExit``, or ``StopIteration``.

    Raised in its place, so that it fails like any other exception; the message is its type and
    message.
    """


class WeightMismatch(ForgeError):
    """A replica does not hold the weights it had to load; it gets no requests."""
