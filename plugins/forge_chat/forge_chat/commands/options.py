"""The options that ``forge generate`` and ``forge chat`` share, and what they select."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from forge_core import Forge
    from forge_run.policy_source import PolicySource

_OVERRIDE = re.compile(r"[a-z_]+([.][\w-]+)+=")
"""A dotted key before the ``=``, which ``12+34=`` is not."""

_FLAGS = {
    "generator": "generator.use",
    "max_tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
}


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which weights, which generator and how to sample."""
    options = (
        click.option("--step", type=int, help="Of a run: that step's checkpoint."),
        click.option("--generator", metavar="NAME", help="Short for generator.use=NAME."),
        click.option("--max-tokens", type=int, help="Short for sampling.max_tokens=N."),
        click.option("--temperature", type=float, help="Short for sampling.temperature=T."),
        click.option("--top-p", type=float, help="Short for sampling.top_p=P."),
        click.option("--top-k", type=int, help="Short for sampling.top_k=K."),
        click.option("--seed", type=int, help="Sample the same each time."),
        click.option("--raw", is_flag=True, help="Leave the model's chat template out."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def overrides(flags: dict[str, Any], words: Sequence[str]) -> list[str]:
    """The flags that were given as ``key=value``, then the words."""
    given = [f"{_FLAGS[name]}={value}" for name, value in flags.items() if value is not None]
    return [*given, *words]


def is_override(word: str) -> bool:
    """Whether a word is ``section.key=value`` and not a prompt that has an equals sign."""
    return _OVERRIDE.match(word) is not None


def find(
    app: Forge,
    name: str,
    changes: Sequence[str],
    *,
    step: int | None,
    defaults: Mapping[str, Any] | None = None,
) -> PolicySource:
    """``find_policy``, and a line on standard error for each damaged checkpoint skipped."""
    from forge_run.policy_source import find_policy

    source = find_policy(app, name, changes, step=step, defaults=defaults)
    for line in source.warnings:
        click.secho(f"warning: {line}", fg="yellow", err=True)
    return source
