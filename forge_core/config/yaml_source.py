"""YAML in which every key and value knows its file and line.

Read through ``yaml.compose``, which keeps the marks that ``yaml.load`` throws away. Plain scalars
follow YAML 1.2's core schema, because 1.1 surprises: there ``1e-5`` is text and ``no`` is false.
``${NAME}`` and ``${NAME:-default}`` in a value are taken from the environment; ``$${`` is a literal
``${``. Keys may not repeat in a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from forge_core.config.tree import (
    MOST_LEVELS,
    MOST_VALUES,
    TOO_DEEP,
    TOO_MANY,
    Leaf,
    Node,
    Origin,
    Table,
    plain,
)
from forge_core.contracts.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
_SCALARS: tuple[tuple[str, str, list[str]], ...] = (
    ("null", r"^(?:null|Null|NULL|~|)$", ["n", "N", "~", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
)
"""YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema), int before float."""

MOST_BYTES = 256 * 1024
"""Most bytes of a config file."""

MOST_CHARACTERS = 2 * MOST_BYTES
"""Most characters of all values, with aliases and variables (``${NAME}``) written out."""

_INTERPOLATION = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\$\{")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own attribute)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node. Limits hold while text is read: it never takes long to refuse it."""
        self._values += 1
        self._levels += 1
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._values > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, TOO_MANY, mark)
        if self._levels > MOST_LEVELS:
            raise yaml.composer.ComposerError(None, None, TOO_DEEP, mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._levels -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: list(resolvers)
        for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # PyYAML writes these line breaks unescaped unless it has to quote, and loses them.
        style = '"' if re.search("[\r\x85\u2028\u2029]", text) else None
        return self.represent_scalar(_TAG + "str", text, style)

    def represent_items(self, items: list[Any]) -> yaml.SequenceNode:
        """A list of single values is written on one line."""
        flat = not any(isinstance(item, list | dict) for item in items)
        return self.represent_sequence(_TAG + "seq", items, flow_style=flat or None)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_items)
for _kind, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)
    _Dumper.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


def load_file(path: Path, layer: str, environ: Mapping[str, str]) -> Table:
    """Read a config file.

    Raises:
        ConfigError: it cannot be read, is not YAML, or its top is not a mapping.
    """
    shown = display(path)
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{shown}: more than {MOST_BYTES // 1024} KiB, too much for a config")
        # As a file opened as text has it.
        text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror}") from None
    root = _compose(text, shown)
    if root is None:
        return Table({}, Origin(layer, shown, ""))
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{shown}:{root.start_mark.line + 1}: a config is a mapping of sections, "
            f"not a {_kind_of(root)}"
        )
    problems: list[str] = []
    where = lambda node: f"{shown}:{node.start_mark.line + 1}"  # noqa: E731
    tree = _Reader(layer, where, environ, problems).read(root, "")
    if problems:
        raise ConfigError(problems)
    assert isinstance(tree, Table)
    return tree


def parse_value(text: str, origin: Origin, environ: Mapping[str, str]) -> Node:
    """Read a value typed behind ``key=`` or in a variable; all of it has the one origin.

    Raises:
        ConfigError: it is not YAML.
    """
    try:
        root = _compose(text, "")
    except ConfigError as error:
        detail = error.problems[0].lstrip(":0123456789 ")
        if detail.endswith((TOO_MANY, TOO_DEEP)):
            raise ConfigError(f"{origin.where}: {origin.key}: {detail}") from None
        raise ConfigError(
            f"{origin.where}: {origin.key}: {detail}; put text that is not YAML in quotes"
        ) from None
    if root is None:
        return Leaf(None, text, origin)
    problems: list[str] = []
    reader = _Reader(origin.layer, lambda _: origin.where, environ, problems)
    tree = reader.read(root, origin.key)
    if problems:
        raise ConfigError(problems)
    return tree


def dump(data: Any) -> str:
    """Block-style YAML that ``load_file`` and any YAML 1.1 reader read back as the same data."""
    text: str = yaml.dump(
        _escape(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return text


def dump_inline(data: Any) -> str:
    """A value on one line, as it could be typed behind ``key=``."""
    text: str = yaml.dump(
        _escape(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=float("inf"),
    )
    return text.removesuffix("\n").removesuffix("\n...")


def shortened(text: str) -> str:
    """Text as it fits into a line of an error."""
    return text if len(text) <= 120 else f"{text[:80]}... ({len(text):,} characters)"


def display(path: Path) -> str:
    """A path as people want to read it: relative where it lies below the current folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _compose(text: str, shown: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        if error.problem in (TOO_MANY, TOO_DEEP):
            raise ConfigError(f"{place}: {error.problem}") from None
        about = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not valid YAML: {about}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise ConfigError(
            f"{shown}:{line}:{column}: not valid YAML: character {error.character!r} is not allowed"
        ) from None
    return node


class _Reader:
    """Turns YAML nodes into a tree, collecting problems."""

    def __init__(
        self,
        layer: str,
        where: Callable[[yaml.Node], str],
        environ: Mapping[str, str],
        problems: list[str],
    ) -> None:
        self.layer = layer
        self.where = where
        self.environ = environ
        self.problems = problems
        self.open: set[int] = set()
        self._values = 0
        self._characters = 0
        self._lists = 0

    def read(self, node: yaml.Node, key: str) -> Node:
        self._values += 1
        origin = Origin(self.layer, self.where(node), key)
        if self._values > MOST_VALUES:
            raise ConfigError(f"{origin.where}: {key}: {TOO_MANY}, aliases written out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, origin)
        if isinstance(node, yaml.SequenceNode):
            value = self._list(node, origin)
            # Only the outermost list is shown; that of each inner one would be written many times.
            return Leaf(value, "" if self._lists else dump_inline(value), origin)
        assert isinstance(node, yaml.ScalarNode)
        return Leaf(self._scalar(node, origin), node.value, origin)

    def _mapping(self, node: yaml.MappingNode, origin: Origin) -> Table:
        items: dict[str, Node] = {}
        seen: dict[str, str] = {}
        if self._enter(node, origin):
            for key_node, value_node in node.value:
                where = self.where(key_node)
                if not isinstance(key_node, yaml.ScalarNode):
                    self.problems.append(f"{where}: a key must be one word, not a list or mapping")
                    continue
                name = key_node.value
                key = f"{origin.key}.{name}" if origin.key else name
                if name == "<<" and key_node.style is None:
                    self.problems.append(
                        f"{where}: {key}: merge keys are no part of YAML 1.2; write the keys out, "
                        "or lay this file over another with extends"
                    )
                    continue
                if name in seen:
                    self.problems.append(
                        f"{where}: {key}: given twice; the first is at {seen[name]}"
                    )
                    continue
                seen[name] = where
                child = self.read(value_node, key)
                # The line of the key, which is where a person looks, also when its value is a
                # mapping or list that begins below it.
                at_key = Origin(self.layer, where, key)
                items[name] = (
                    Table(child.items, at_key)
                    if isinstance(child, Table)
                    else Leaf(child.value, child.text, at_key)
                )
            self.open.remove(id(node))
        return Table(items, origin)

    def _list(self, node: yaml.SequenceNode, origin: Origin) -> list[Any]:
        if not self._enter(node, origin):
            return []
        self._lists += 1
        values = [plain(self.read(child, origin.key)) for child in node.value]
        self._lists -= 1
        self.open.remove(id(node))
        return values

    def _enter(self, node: yaml.Node, origin: Origin) -> bool:
        """False, with a problem, when an alias (``*name``) leads back into itself."""
        if id(node) in self.open:
            self.problems.append(f"{origin.where}: {origin.key}: refers to itself")
            return False
        self.open.add(id(node))
        return True

    def _scalar(self, node: yaml.ScalarNode, origin: Origin) -> Any:
        where = self.where(node)
        text = node.value
        tag = node.tag
        if "${" in text:
            text = self._interpolate(text, where, origin.key)
            if node.style is None:
                tag = _resolve(text)
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS:
            raise ConfigError(
                f"{where}: {origin.key}: more than {MOST_CHARACTERS:,} characters, aliases and "
                "variables written out"
            )
        kind = tag.removeprefix(_TAG)
        try:
            return _CONSTRUCT[kind](text)
        except (KeyError, ValueError):
            self.problems.append(
                f"{where}: {origin.key}: {kind} {shortened(text)!r} is not a value a config can "
                "hold"
            )
            return None

    def _interpolate(self, text: str, where: str, key: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, default = match["name"], match["default"]
            if name is None:
                self.problems.append(
                    f"{where}: {key}: write ${{NAME}}, ${{NAME:-default}}, "
                    f"or $${{ for the characters themselves; not {shortened(text)!r}"
                )
                return ""
            if default is not None:
                return self.environ.get(name) or default
            if name not in self.environ:
                self.problems.append(
                    f"{where}: {key}: environment variable {name} is not set; "
                    f"set it, or write ${{{name}:-default}}"
                )
                return ""
            return self.environ[name]

        return _INTERPOLATION.sub(value_of, text)


def _resolve(text: str) -> str:
    for kind, pattern, _ in _SCALARS:
        if re.match(pattern, text):
            return _TAG + kind
    return _TAG + "str"


def _int(text: str) -> int:
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


def _float(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if "n" in text else text)


_CONSTRUCT: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": _int,
    "float": lambda text: _float(text.lower()),
    "str": str,
}


def _kind_of(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def _escape(data: Any) -> Any:
    """Keep ``${`` in text from being read as an interpolation."""
    if isinstance(data, str):
        return data.replace("${", "$${")
    if isinstance(data, Mapping):
        return {key: _escape(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_escape(value) for value in data]
    return data
