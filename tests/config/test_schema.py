"""The JSON Schema agrees with the parser about what a config file may say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from forge_config.schema import component_schema, config_schema
from forge_core import Forge, LossComponent, PluginError, RunConfig, Settings, UsageError, hookimpl
from forge_core.config.schema import describe
from forge_core.config.tree import plain
from forge_core.config.yaml_source import load_file
from forge_core.plugins.catalog import Catalog

Read = Callable[..., RunConfig]


def accepts(schema: dict[str, Any], data: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(data)


def test_it_is_a_schema(catalog: Catalog) -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema(catalog))


def test_it_accepts_what_the_parser_accepts(catalog: Catalog, read: Read) -> None:
    schema = config_schema(catalog)
    getting_started = Path(__file__).parent / "getting_started.yaml"
    assert accepts(schema, plain(load_file(getting_started, "file", {})))
    two_stages = read("two-stages")
    assert accepts(schema, dict(two_stages.tree))
    assert accepts(schema, {"trainer": {"lr": 1e-4, "fused": True, "procs": 2}})
    assert accepts(schema, {"reference": {"use": "sharded", "procs": 2, "replicas": 2}})
    assert accepts(schema, {"reward_workers": {"replicas": 2, "env": {"NAME": "value"}}})
    assert accepts(schema, {"rewards": {"mine": {"use": "math", "weight": 2}, "math": {}}})
    assert accepts(schema, {"trackers": {"console": None}, "environment": None, "training": None})


@pytest.mark.parametrize(
    "data",
    [
        {"training": {"batchsize": 4}},
        {"training": {"batch_size": "four"}},
        {"trainer": {"use": "sharded", "fused": True}},
        {"trainer": {"shards": 2}},
        {"trainer": {"replicas": 2}},
        {"reference": {"use": "sharded", "routing": "sticky"}},
        {"reward_workers": {"procs": 2}},
        {"loss": {"use": "grop"}},
        {"loss": {"clip": 0.1}},
        {"los": {}},
        {"rewards": {"mine": {}}},
        {"rewards": {"math": {"strip": True}}},
        {"stages": {"a": {"checkpointing": {}}}},
        {"stages": {"a": {"training": {"step": 1}}}},
        {"model": {"init": {"characters": 3}}},
    ],
)
def test_it_refuses_what_the_parser_refuses(catalog: Catalog, data: dict[str, Any]) -> None:
    assert not accepts(config_schema(catalog), data)


def test_one_component(catalog: Catalog) -> None:
    schema = component_schema(catalog, "generator", "remote")
    assert schema["title"] == "generator remote"
    assert set(schema["properties"]) == {
        "use",
        "replicas",
        "procs",
        "isolate",
        "with_gpus",
        "env",
        "routing",
        "concurrency",
        "deadline",
        "outage_limit",
        "restarts",
        "restart_delay",
        "url",
    }
    assert accepts(schema, {"use": "remote", "url": "http://x"})
    assert not accepts(schema, {"use": "torch"})
    with pytest.raises(PluginError, match="no loss is called 'grop'"):
        component_schema(catalog, "loss", "grop")
    with pytest.raises(UsageError, match=r"no family is called 'losses' \(allowed: generator, "):
        component_schema(catalog, "losses", "grpo")


def make(settings: Settings, context: object) -> None:
    """Never built here."""


def test_settings_that_json_schema_cannot_express(forge_app: Callable[..., Forge]) -> None:
    class Odd(Settings):
        model_config = {"arbitrary_types_allowed": True}  # noqa: RUF012
        thing: Forge | None = None

    class Plugin:
        @hookimpl
        def forge_losses(self) -> Any:
            yield LossComponent(name="odd", settings=Odd, build=make, summary="odd")

    catalog = forge_app(Plugin()).plugins.catalog
    assert accepts(config_schema(catalog), {"loss": {"use": "odd", "whatever": 1}})


def test_one_name_in_two_plugins(forge_app: Callable[..., Forge]) -> None:
    class Left:
        @hookimpl
        def forge_losses(self) -> Any:
            yield LossComponent(name="same", settings=Settings, build=make, summary="left")

    class Right:
        @hookimpl
        def forge_losses(self) -> Any:
            yield LossComponent(name="same", settings=Settings, build=make, summary="right")

    schema = config_schema(forge_app(Left(), Right()).plugins.catalog)
    assert accepts(schema, {"loss": {"use": "Left:same"}})
    assert not accepts(schema, {"loss": {"use": "same"}})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "a whole number, at least 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "a number, above 0, at most 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or null"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, "a list, each text"),
        ({"$ref": "#/$defs/Kind"}, "one of a, b"),
        ({"const": 3}, "3"),
        ({"type": "object", "properties": {"x": {}}}, "a mapping (x)"),
        ({}, ""),
    ],
)
def test_allowed_values_in_words(schema: dict[str, Any], words: str) -> None:
    assert describe(schema, {"Kind": {"enum": ["a", "b"]}}).startswith(words)
