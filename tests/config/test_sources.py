"""Each layer is a pydantic-settings source that sees the layers above it and keeps origins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import PydanticBaseSettingsSource

from forge_core import ConfigError
from forge_core.config.files import Files, ModelPreset
from forge_core.config.resolve import RunConfig, resolve
from forge_core.config.sources import (
    Arguments,
    Defaults,
    Environment,
    Layers,
    Request,
)
from forge_core.config.tree import leaves
from forge_core.plugins.catalog import Catalog

Read = Callable[..., RunConfig]
Write = Callable[[str, str], Path]

HIGHEST_FIRST = (Arguments, Environment, Files, ModelPreset, Defaults)


def test_every_layer_comes_from_a_source_that_keeps_origins(catalog: Catalog, write: Write) -> None:
    path = write("a.yaml", "extends: two-stages\nmodel: {name: acme/big}\n")
    request = Request(catalog, path, ["training.seed=1"], {"FORGE_TRAINER__LR": "2"})
    sources = tuple(kind(request) for kind in HIGHEST_FIRST)
    assert all(isinstance(source, PydanticBaseSettingsSource) for source in sources)
    assert {source.fills for source in sources} == set(Layers.model_fields)
    layers = Layers(_build_sources=(sources, {}))
    origins = [
        {
            (leaf.origin.layer, leaf.origin.where)
            for node in (*layer.sections.values(), *([layer.name] if layer.name else []))
            for leaf in leaves(node)
        }
        for layer in layers.of("grpo")
    ]
    preset = Path("presets/model.yaml")
    assert origins == [
        {("default", "default")},
        {("default", "default")},  # the transport, from where trainer and generator are
        {("recipe grpo", "recipe grpo")},
        {("model preset acme/big", f"{preset}:{line}") for line in (1, 2)},
        {("default", "")},  # the name of the run
        {("preset two-stages", f"presets/two.yaml:{line}") for line in (2, 4, 6)},
        {("file", "a.yaml:2")},
        {("environment", "FORGE_TRAINER__LR")},
        {("command line", "training.seed=1")},
    ]


@pytest.mark.parametrize("overrides", [["model.name=acme/big"], {"model.name": "acme/big"}])
def test_the_model_preset_is_chosen_by_any_layer_above_it(
    catalog: Catalog, overrides: list[str] | Mapping[str, Any]
) -> None:
    assert resolve(catalog, None, overrides, environ={}).model.dtype == "bfloat16"
    environ = {"FORGE_MODEL__NAME": "acme/big"}
    assert resolve(catalog, None, environ=environ).model.dtype == "bfloat16"
    assert resolve(catalog, None, ["model.name=x"], environ=environ).model.dtype == "float32"


def test_problems_are_listed_from_the_lowest_layer_to_the_highest(read: Read, write: Write) -> None:
    write("base.yaml", "one: {}\n")
    path = write("a.yaml", "extends: base.yaml\ntwo: {}\n")
    with pytest.raises(ConfigError) as caught:
        read(path, "four.x=1", FORGE_THREE__X="1")
    places = [problem.split(":")[0] for problem in caught.value.problems]
    assert places == ["base.yaml", "a.yaml", "FORGE_THREE__X", "four.x=1"]


def test_a_key_in_code_that_is_too_deep(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match="more than 50 levels") as caught:
        resolve(catalog, None, {"training." + ".".join("a" * 20_000): 1}, environ={})
    assert len(str(caught.value)) < 300
