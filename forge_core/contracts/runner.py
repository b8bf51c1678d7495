"""What carries a config out: the runner, which a plugin brings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge_core.contracts.config import RunConfig
    from forge_core.contracts.records import Summary


class PreparedRun(Protocol):
    """A run that is checked as far as can be, and not started."""

    @property
    def config(self) -> RunConfig:
        """What holds in it; a run that goes on may leave out changes that cannot hold."""

    @property
    def total_steps(self) -> Sequence[int]:
        """Optimizer steps of each stage."""

    def execute(self) -> Summary:
        """Start it, and stay until its end. Works in a notebook too, where a loop is running.

        Raises:
            ForgeError: a child of it, for everything that is not success.
        """


class Runner(Protocol):
    """Makes runs from configs, for one app."""

    def prepare(
        self,
        source: str | Path | Mapping[str, Any] | None,
        overrides: Sequence[str] | Mapping[str, Any],
        *,
        resume: Path | None = None,
    ) -> PreparedRun:
        """Check everything that can be checked before a start.

        Args:
            source: preset name, path of a YAML file, or a mapping; None with ``resume``: the run's.
            overrides: on top of the source.
            resume: run folder to go on with; default ``checkpointing.resume``.

        Raises:
            UsageError: something is wrong with the config, the data, or the run to go on with.
        """
