"""The lifecycle hooks of plugins: each plugin apart, so that one that raises is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from forge_core import ForgeError, RunFailed
from forge_core.contracts.blame import contained, described
from forge_run.listener import CALL_SECONDS

if TYPE_CHECKING:
    from forge_core import Summary

Lookup = Callable[[str], Sequence[tuple[str, Callable[..., object]]]]
"""Hook -> the functions of those plugins that act in a run, each with its plugin's name."""


class Observers:
    """Calls lifecycle hooks in the order of the plugins, in the caller's thread.

    Args:
        hooks: finds them, once for each hook.
        on_failure: called with plugin, hook and reason when an observer is given up.
    """

    def __init__(self, hooks: Lookup, on_failure: Callable[[str, str, str], None]) -> None:
        self._hooks = cache(hooks)
        self._on_failure = on_failure
        self._given_up: set[tuple[str, str]] = set()
        self.waiting: Callable[[str, str], AbstractContextManager[None]] = lambda *_: nullcontext()
        """The watchdog's: a hook that does not return is named."""

    def call(self, hook: str, **arguments: Any) -> None:
        """A ``ForgeError`` stops the run; after anything else the hook is not called again."""
        for plugin, function in self._hooks(hook):
            if (plugin, hook) in self._given_up:
                continue
            try:
                with contained(), self.waiting("run", f"{hook} of plugin {plugin}"):
                    function(**arguments)
            except ForgeError:
                raise
            except Exception as error:
                self._give_up(plugin, hook, described(error))

    def require(self, hook: str, **arguments: Any) -> None:
        """For hooks whose effect is part of the run's numbers.

        Raises:
            RunFailed: a plugin raised something else than a ``ForgeError``; names it.
        """
        for plugin, function in self._hooks(hook):
            try:
                with contained(), self.waiting("run", f"{hook} of plugin {plugin}"):
                    function(**arguments)
            except ForgeError:
                raise
            except Exception as error:
                raise RunFailed(
                    f"{hook}: {described(error)}", component=f"plugin {plugin}"
                ) from error

    def finish(self, summary: Summary) -> None:
        """``forge_run_finished``: the outcome is decided, so nothing raises and nothing hangs."""
        for plugin, function in self._hooks("forge_run_finished"):
            failures: list[BaseException] = []
            thread = threading.Thread(
                target=_call, args=(function, summary, failures), name="run-finished", daemon=True
            )
            thread.start()
            reason = f"no answer for {CALL_SECONDS:g} s"
            try:
                thread.join(timeout=CALL_SECONDS)
            except KeyboardInterrupt:
                reason = "not waited for (interrupted)"
            if failures:
                self._give_up(plugin, "forge_run_finished", described(failures[0]))
            elif thread.is_alive():
                self._give_up(plugin, "forge_run_finished", reason)

    def _give_up(self, plugin: str, hook: str, reason: str) -> None:
        self._given_up.add((plugin, hook))
        self._on_failure(plugin, hook, reason)


def _call(function: Callable[..., object], summary: Summary, failures: list[BaseException]) -> None:
    try:
        function(summary=summary)
    except BaseException as error:
        failures.append(error)
