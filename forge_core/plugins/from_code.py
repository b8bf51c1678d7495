"""Components that no plugin declares: functions and classes in a file, or handed over in code.

``use: my_reward.py:brevity`` is a component of any family. ``NAME`` is

- for rewards, losses, schedules and advantages, which are functions: the function, whose further
  parameters are its settings; for optimizers likewise a function or class that is called with the
  parameter groups (its ``lr`` is the trainer's to set, and no setting);
- else a function or class that makes the component when it is called with its settings;
- or a ``Component``, or the finished component itself.

The file is run once, in the controller's process; what came out of it travels to other processes by
value. So a run uses the file as it was when the run began.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.abc
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from forge_core.contracts.blame import FILE_MODULE, contained, described
from forge_core.contracts.component import Component
from forge_core.contracts.errors import PluginError
from forge_core.contracts.families import COMPONENT_TYPES
from forge_core.contracts.settings import Settings

if TYPE_CHECKING:
    from forge_core.contracts.context import BuildContext

REFERENCE = re.compile(r"(?P<file>.*\.py):(?P<name>\w+)")
"""What ``use:`` says for a function or class in a file."""

FUNCTIONS = {"reward": 1, "loss": 3, "optimizer": 1, "schedule": 2, "advantage": 1}
"""Families whose components are functions -> how many of their arguments the kernel gives."""


SAYS = {
    "loss": ("needs",),
    "trainer": ("gives",),
    "optimizer": ("sharded", "state_values"),
    "schedule": ("ends",),
    "advantage": ("scale",),
    "recipe": ("requires", "provides", "defaults"),
    "environment": ("gives_rewards",),
}
"""Family -> what a function or class may say of itself, as an attribute of the component's name."""


def component_in_file(family: str, reference: str, reserved: frozenset[str]) -> Component[Any]:
    """The component that a reference such as ``/my/reward.py:brevity`` names.

    Raises:
        PluginError: there is no such file, running it fails, or it has nothing of that name that
            could be a component; names the file, and the line where there is one.
    """
    match = REFERENCE.fullmatch(reference)
    assert match is not None
    path, name = Path(match["file"]), match["name"]
    module = _module(path)
    try:
        found = getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, _own(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else f" (it has: {', '.join(_own(module))})"
        raise PluginError(f"{path} has no {name}{hint}") from None
    return component_of(family, name, found, reserved)


def component_of(family: str, name: str, thing: object, reserved: frozenset[str]) -> Component[Any]:
    """The component that a function, a class or an object makes.

    Args:
        family: that it shall be of.
        name: what it is called.
        thing: the object.
        reserved: the kernel's keys of the family's sections, which cannot be settings.

    Raises:
        PluginError: it cannot be one.
    """
    expected = COMPONENT_TYPES.get(family, Component)
    if isinstance(thing, Component):
        if not isinstance(thing, expected):
            raise PluginError(f"{name} is a {type(thing).__name__}, not a {expected.__name__}")
        return thing
    if family == "transport":
        raise PluginError(
            f"{name}: write a TransportComponent, which says how far apart its ends are"
        )
    if not callable(thing) and family in FUNCTIONS:
        raise PluginError(f"{name} is of type {type(thing).__name__}, not a function")
    if isinstance(thing, str | bytes | int | float | dict | types.ModuleType) or thing is None:
        raise PluginError(f"{name} is of type {type(thing).__name__}, not a {family}")
    builds = family not in FUNCTIONS and inspect.isroutine(thing)
    builds |= inspect.isclass(thing) and family != "optimizer"  # those are made of the weights
    given = FUNCTIONS.get(family, 0) if not builds else 0
    takes = builds or family in FUNCTIONS
    parameters = _parameters(thing, given) if callable(thing) and takes else {}
    if family == "optimizer":
        parameters.pop("lr", None)
    clashes = sorted(parameters.keys() & reserved)
    if clashes:
        raise PluginError(
            f"{name}: parameter {clashes[0]!r} has the name of a key that every {family} has in a "
            "config; rename it"
        )
    doc = (inspect.getdoc(thing) or name).splitlines()[0]
    return expected(
        name=name,
        settings=_settings(name, thing, parameters),
        build=_Build(thing, builds=builds, family=family),
        summary=doc,
        **{each: getattr(thing, each) for each in SAYS.get(family, ()) if hasattr(thing, each)},
    )


@dataclass(frozen=True)
class _Build:
    """``build`` of a component that is a function, a class or an object."""

    thing: Any
    builds: bool
    family: str

    def __call__(self, settings: BaseModel, context: BuildContext) -> Any:
        values = {name: getattr(settings, name) for name in type(settings).model_fields}
        if self.builds:
            if "context" in inspect.signature(self.thing).parameters:
                values["context"] = context
            return self.thing(**values)
        if not callable(self.thing) or self.family not in FUNCTIONS:
            return self.thing
        return functools.partial(self.thing, **values) if values else self.thing


def _parameters(thing: Callable[..., Any], given: int) -> dict[str, inspect.Parameter]:
    """The parameters that are settings."""
    try:
        parameters = list(inspect.signature(thing).parameters.values())[given:]
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: each for each in parameters if each.kind in named and each.name != "context"}


def _settings(
    name: str, thing: object, parameters: dict[str, inspect.Parameter]
) -> type[BaseModel]:
    if not parameters:
        return Settings
    annotated = thing.__init__ if inspect.isclass(thing) else thing
    try:
        hints = typing.get_type_hints(annotated)
    except Exception:  # an annotation that only type checkers can read
        hints = {}
    fields: dict[str, Any] = {
        each.name: (
            hints.get(each.name, _type_of(each.default)),
            ... if each.default is each.empty else each.default,
        )
        for each in parameters.values()
    }
    module = getattr(thing, "__module__", None) or __name__
    return create_model(f"{name}_settings", __base__=Settings, __module__=module, **fields)


def _type_of(default: object) -> Any:
    """The type of a parameter without an annotation: that of its default, if it is a plain one."""
    return type(default) if isinstance(default, bool | int | float | str) else Any


class _Source(importlib.abc.ExecutionLoader):
    """Runs the source that its name was made from, and writes no bytecode beside the file."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)


def _module(path: Path) -> types.ModuleType:
    """A file as a module, run once for each content that it has had.

    Raises:
        PluginError: it cannot be read, or raises when it is run.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: cannot be read: {error.strerror}") from None
    name = f"{FILE_MODULE}{path.stem}_{content_hash(str(path).encode() + source)}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Source(path, source)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that files beside it can be imported and hide nothing
    sys.modules[name] = module
    try:
        with contained():
            loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise PluginError(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}") from error
    except Exception as error:
        del sys.modules[name]
        raise PluginError(f"{path} cannot be run: {described(error)}") from error
    return module


def content_hash(content: bytes) -> str:
    """Distinguishes two versions of a file."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _own(module: types.ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
