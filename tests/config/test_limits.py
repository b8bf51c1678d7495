"""Configs made to exhaust, and impossible numbers: refused in one line, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import ConfigError, Forge, Settings
from forge_core.config import layers
from forge_testing.runs import small_config, write_config

LAUGHS = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
NESTED_MAPS = "model: {init: {config: " + "{a: " * 200 + "1" + "}" * 200 + "}}"
REPEATED = f"name: &a {'x' * 200_000}\nloss: {{z: [{', '.join(['*a'] * 3_000)}]}}"
BIG = "{place}: more than 256 KiB, too much for a config"
DEEP = "more than 50 levels of mappings and lists inside one another"
MANY = "more than 10,000 keys and values"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "{place}:1: a3: " + MANY + ", aliases written out"),
        ("rewards:\n" + "".join(f"  r{n}: {{use: math}}\n" for n in range(100_000)), BIG),
        ("model:\n" + "".join(f"  k{n}: v\n" for n in range(900_000)), BIG),
        ("name: " + "x" * 10_000_000, BIG),
        ("model:\n" + "".join(f" k{n}: 1\n" for n in range(6_000)), "{place}:5000:9: " + MANY),
        (f"training: {{steps: {'[' * 200}{']' * 200}}}", "{place}:1:67: " + DEEP),
        ("training: " + "[" * 100_000, "{place}:1:60: " + DEEP),
        (NESTED_MAPS, "{place}:1:209: " + DEEP),
        (REPEATED, "{place}:1: loss.z: more than 524,288 characters, aliases and variables"),
        ("stages:\n" + "".join(f"  s{n}: {{}}\n" for n in range(101)), "{place}:1: stages: more"),
    ],
    ids=[
        *("laughs", "rewards", "keys", "text", "values", "brackets", "unclosed", "maps"),
        *("repeated", "stages"),
    ],
)
def test_a_file_that_is_too_much(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(text)
    app = Forge()
    _ = app.plugins
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        app.resolve(path)
    assert time.process_time() - began < 1.0
    (line,) = caught.value.problems
    assert line.startswith(message.replace("{place}", str(path)))


def test_ten_thousand_values_are_read_in_time(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    nested = "[" * 40 + ", ".join(["1"] * 9_800) + "]" * 40
    path.write_text(f"model: {{init: {{characters: ab, config: {{a: {nested}}}}}}}")
    app = Forge()
    _ = app.plugins
    began = time.process_time()
    app.resolve(path)
    assert time.process_time() - began < 5.0, "each level once, not each below each"


def test_many_mistakes_are_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("".join(f"k{n}: {{}}\n" for n in range(1_000)))
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        Forge(discover=False).resolve(path)
    assert time.process_time() - began < 2.0
    assert len(caught.value.problems) <= layers.MOST_PROBLEMS + 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("training.optimizer.betas=" + "[" * 200, f"training.optimizer.betas: {DEEP}"),
        ("training." + ".".join("a" * 20_000) + "=1", DEEP),
        ("training.steps=" + "9" * 100_000, "is not a value a config can hold"),
        ("model.dtype=" + "x" * 100_000, "not 'xxx"),
    ],
    ids=["brackets", "dots", "digits", "text"],
)
def test_an_argument_that_is_too_much(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Forge().resolve(small_config(), [argument])
    (line,) = caught.value.problems
    assert message in line
    assert len(line) < 500, "and not all of it again"


def test_too_many_arguments() -> None:
    with pytest.raises(ConfigError, match="more than 1,000 overrides; write them into a file"):
        Forge().resolve(small_config(), ["training.seed=1"] * 1_001)


def test_a_mapping_from_code_that_is_too_much() -> None:
    rewards = {f"r{number}": {"use": "math"} for number in range(100_000)}
    for source, overrides in ((small_config(rewards=rewards), {}), (None, {"rewards": rewards})):
        with pytest.raises(ConfigError, match=MANY):
            Forge().resolve(source, overrides)


def test_a_mapping_that_holds_itself() -> None:
    circle: dict[str, Any] = {}
    circle["model"] = circle
    with pytest.raises(ConfigError, match=DEEP):
        Forge().resolve(circle)
    with pytest.raises(ConfigError, match=DEEP):
        Forge().resolve(small_config(), {"model": {"init": {"config": circle}}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.num_epochs=.inf", "must be finite; not '.inf'"),
        ("training.learning_rate=.nan", "must be finite; not '.nan'"),
        ("training.learning_rate=1e999", "must be finite; not '1e999'"),
        ("training.steps=99999999999999999999", "must be at most 2^63 - 1; not '999999999999999"),
        ("training.optimizer.betas=[5, 7]", "must be a number, at least 0, below 1; not 5"),
        ("training.optimizer.betas=[0.9, .nan]", "must be finite; not '[0.9, .nan]'"),
        ("training.max_grad_norm=-.inf", "must be finite; not '-.inf'"),
        ("rewards.exact_match.weight=.inf", "must be finite; not '.inf'"),
        ("rewards.exact_match.deadline=1e300", "at most 1e+08; not '1e300'"),
        ("loss.clip_high=.inf", "must be finite; not '.inf'"),
        ("trackers.console.interval=.nan", "must be finite; not '.nan'"),
        ("sampling.temperature=.inf", "must be finite; not '.inf'"),
        ("model.init.config.rope_theta=.nan", "must be finite; not '.nan'"),
        ("model.init.config.hidden_size=wide", "must be a whole number, at least 1"),
        ("model.init.config.hidden_size=0", "must be a whole number, at least 1"),
        ("model.init.config.hidden_size=64.5", "must be a whole number, at least 1"),
        ("model.init.config.num_hidden_layers=[2]", "must be a whole number, at least 1"),
        ("model.init.config.rms_norm_eps=small", "must be a number, above 0"),
        ("model.init.config.tie_word_embeddings=1", "must be true or false"),
        ("model.init.config.rope_scaling=2", "must be a mapping"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run --dry-run"])
def test_a_number_that_cannot_be(
    tmp_path: Path, run_forge: Callable[..., Any], override: str, message: str, command: str
) -> None:
    path = write_config(small_config(loss={"use": "grpo"}), tmp_path / "small.yaml")
    done = run_forge(*command.split(), str(path), override)
    assert done.exit_code == 2
    key = override.partition("=")[0]
    line = done.stderr.splitlines()[0]
    assert line.startswith(f"error: {override}: {key}"), line
    assert message in line


def test_settings_made_in_code_are_finite_too() -> None:
    class Mine(Settings):
        factor: float = 1.0

    with pytest.raises(ValueError, match="finite"):
        Mine(factor=float("inf"))
