"""Which models trainer ``titan`` has a definition of. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_core import DataError, ModelSection
from forge_models.shape import model_config

ARCHITECTURES = ("llama", "qwen3")
"""Model types of ``config.json`` that become one of TorchTitan's models here."""

ROPE_TYPES = {"llama": ("default", "llama3"), "qwen3": ("default",)}
"""Model type -> kinds of rotary position embedding that TorchTitan's model has."""


def check_model(model: ModelSection) -> None:
    """Refuse a model whose ``config.json`` says that TorchTitan has no such model.

    What the file leaves to the architecture's defaults is left to the trainer itself.

    Raises:
        DataError: names the field and what there is.
    """
    config = model_config(model)
    if config is None:
        return
    source = model.path or model.name
    where = "model.init" if model.init is not None else f"model folder {source}: config.json"
    check_config(config, where)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(rope, Mapping):
        check_rope(config["model_type"], rope.get("rope_type", rope.get("type")), where)


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Check the fields of a config, those that it has.

    Raises:
        DataError: names the field and what there is.
    """
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        raise DataError(
            f"{where}: trainer titan has no model_type {model_type!r} "
            f"(it has {', '.join(ARCHITECTURES)}); trainer torch takes every one"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise unsupported(where, "hidden_act", config["hidden_act"], "silu")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(name):
            raise unsupported(where, name, True, "false")


def check_rope(model_type: str, kind: str | None, where: str) -> None:
    """Check a kind of rotary position embedding; None is the default one.

    Raises:
        DataError: TorchTitan's model does not have it.
    """
    allowed = ROPE_TYPES[model_type]
    if kind is not None and kind not in allowed:
        raise unsupported(where, "rope_parameters.rope_type", kind, ", ".join(allowed))


def unsupported(where: str, name: str, value: object, allowed: str) -> DataError:
    """The error for a field's value that TorchTitan's model does not have."""
    return DataError(
        f"{where}: TorchTitan's model has no {name} {value!r} (it has: {allowed}); "
        "trainer torch takes every one"
    )
