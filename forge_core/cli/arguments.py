"""The arguments of ``forge run`` and ``forge config``: a config's name and ``key=value``."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core.contracts.errors import UsageError


def is_override(argument: str) -> bool:
    """Whether an argument is ``key=value`` or ``~key`` and not the name of a config."""
    return "=" in argument or argument.startswith("~")


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The source, which may be left out, and the overrides.

    Raises:
        UsageError: there is more than one source.
    """
    sources = [argument for argument in arguments if not is_override(argument)]
    if len(sources) > 1:
        raise UsageError(f"{sources[1]}: one config at a time; an override is key=value or ~key")
    overrides = [argument for argument in arguments if is_override(argument)]
    return (sources[0] if sources else None), overrides
