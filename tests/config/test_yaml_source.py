from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forge_core import ConfigError
from forge_core.config.tree import Leaf, Origin, Table, plain
from forge_core.config.yaml_source import dump, dump_inline, load_file, parse_value

Write = Callable[[str, str], Path]


def value(text: str, environ: Mapping[str, str] | None = None) -> Any:
    return plain(parse_value(text, Origin("test", "test", "key"), environ or {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("12", 12),
        ("+12", 12),
        ("012", 12),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-5'", "1e-5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("[1, a, {b: 2}]", [1, "a", {"b": 2}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, expected: object) -> None:
    got = value(text)
    assert got == expected
    assert type(got) is type(expected)


def test_nan() -> None:
    assert math.isnan(value(".nan"))


def test_every_leaf_knows_its_line_and_key(write: Write) -> None:
    path = write("a.yaml", "model:\n  name: x\n\ntraining:\n  betas:\n  - 0.9\n  - 0.99\n")
    tree = load_file(path, "file", {})
    training = tree.items["training"]
    assert isinstance(training, Table)
    betas = training.items["betas"]
    assert isinstance(betas, Leaf)
    assert (betas.origin.where, betas.origin.key) == ("a.yaml:5", "training.betas")
    assert (training.origin.where, training.origin.key) == ("a.yaml:4", "training")


def test_anchors_keep_the_line_of_the_key_that_uses_them(write: Write) -> None:
    path = write("a.yaml", "a: &x {k: 1}\nb: *x\n")
    tree = load_file(path, "file", {})
    assert plain(tree) == {"a": {"k": 1}, "b": {"k": 1}}
    assert tree.items["b"].origin.where == "a.yaml:2"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a:\n  b: 1\n c: 2\n",
            "a.yaml:3:2: not valid YAML: while parsing a block mapping, "
            "expected <block end>, but found '<block mapping start>'",
        ),
        ("a: [1\n", "a.yaml:2:1: not valid YAML: "),
        ("a: 1\nb: x\x07\n", "a.yaml:2:5: not valid YAML: character "),
        ("- 1\n", "a.yaml:1: a config is a mapping of sections, not a list"),
        ("just text\n", "a.yaml:1: a config is a mapping of sections, not a single value"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: not valid YAML: expected a single document"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: a: given twice; the first is at a.yaml:1"),
        ("m:\n  a: 1\n  a: 3\n", "a.yaml:3: m.a: given twice; the first is at a.yaml:2"),
        ("a: !thing 1\n", "a.yaml:1: a: !thing '1' is not a value a config can hold"),
        ("a: &x [*x]\n", "a.yaml:1: a: refers to itself"),
        ("a: &x {b: *x}\n", "a.yaml:1: a.b: refers to itself"),
        ("[1, 2]: 3\n", "a.yaml:1: a key must be one word, not a list or mapping"),
        ("a: ${MISSING}\n", "a.yaml:1: a: environment variable MISSING is not set; "),
        ("a: ${1x}\n", "a.yaml:1: a: write ${NAME}, ${NAME:-default}, or $${ "),
    ],
)
def test_what_is_not_a_config_is_one_line_with_its_place(
    write: Write, text: str, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_file(write("a.yaml", text), "file", {})
    [problem] = caught.value.problems
    assert problem.startswith(line)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(write: Write) -> None:
    path = write("a.yaml", "")
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"^a.yaml: not UTF-8 text \(byte 3\)$"):
        load_file(path, "file", {})
    with pytest.raises(ConfigError, match=r"^none.yaml: no such file$"):
        load_file(Path("none.yaml"), "file", {})
    with pytest.raises(ConfigError, match=r"^\.: cannot be read: "):
        load_file(Path(), "file", {})


def test_an_empty_file_says_nothing(write: Write) -> None:
    assert load_file(write("a.yaml", "# nothing yet\n"), "file", {}).items == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${N}", 5),
        ("'${N}'", "5"),
        ("a${N}b", "a5b"),
        ("${NONE:-7}", 7),
        ("${NONE:-}", None),
        ("${EMPTY:-7}", 7),
        ("${EMPTY}", None),
        ("$${N}", "${N}"),
        ("$N and $", "$N and $"),
        ("['${N}', x]", ["5", "x"]),
    ],
)
def test_interpolation(text: str, expected: object) -> None:
    assert value(text, {"N": "5", "EMPTY": ""}) == expected


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), DATA, max_size=4))
def test_what_is_dumped_loads_again(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("dump") / "a.yaml"
    path.write_text(dump(data), encoding="utf-8", newline="")
    assert repr(plain(load_file(path, "file", {}))) == repr(data)


@given(DATA)
def test_what_is_dumped_on_a_line_can_be_typed(data: Any) -> None:
    text = dump_inline(data)
    assert repr(value(text)) == repr(data)


@given(st.dictionaries(st.text(min_size=1), st.text() | st.floats(allow_nan=False), max_size=3))
def test_what_is_dumped_is_the_same_to_yaml_1_1(data: dict[str, Any]) -> None:
    """Other tools read run folders with PyYAML's own loader."""
    data = {key: text for key, text in data.items() if "${" not in str(text)}
    assert yaml.safe_load(dump(data)) == data


def test_merge_keys_are_refused_with_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "merges.yaml"
    path.write_text("training: &base {steps: 3}\nsampling:\n  <<: *base\n")
    with pytest.raises(ConfigError) as raised:
        load_file(path, "file", {})
    (line,) = raised.value.problems
    assert line.endswith(
        "merges.yaml:3: sampling.<<: merge keys are no part of YAML 1.2; write the keys out, or "
        "lay this file over another with extends"
    )
