"""What a plugin contributes beside components: presets, models, sections, commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named config that a package ships.

    Args:
        name: what people write behind ``forge run``.
        path: the YAML file.
        summary: one line for ``forge presets``.
        kind: ``run`` is a whole config; ``model`` supplies defaults to every config whose
            ``model.name`` equals this name.
    """

    name: str
    path: Path
    summary: str
    kind: str = "run"


@dataclass(frozen=True, kw_only=True)
class ModelMaker:
    """A model that ``forge model NAME`` writes as a folder in Hugging Face layout.

    Args:
        name: lower case words joined by ``-`` or ``_``.
        make: function of the folder to write into, which exists and is empty. Heavy packages are
            imported here. Raises ``UsageError`` for what is missing.
        summary: one line for ``forge model``.
    """

    name: str
    make: Callable[[Path], None]
    summary: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A family of a plugin's own, with the config section that selects a component of it.

    Args:
        name: of the section and of the family; lower case words joined by ``_``, none of the
            kernel's. People write ``NAME: {use: ...}``, for the whole run or for a stage.
        hook: with which plugins contribute components, such as ``forge_judges``. It is there as
            soon as the section is, and takes no arguments.
        summary: one line for ``forge config schema``.
        placed: whether the component lives in replicas, on the run's runtime. The section then has
            the kernel's keys of a service (``replicas``, ``procs``, ``with_gpus``, ``deadline``,
            ...), and a recipe has ``await stage.service(NAME)``; else ``stage.component(NAME)``.
    """

    name: str
    hook: str
    summary: str
    placed: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand ``forge NAME``.

    Args:
        name: lower case words joined by ``-`` or ``_``; none of the kernel's own.
        target: ``module:attribute`` of a ``click.Command``; imported when the command is called.
        summary: one line for ``forge --help``.
    """

    name: str
    target: str
    summary: str
