"""TorchTitan's own named sizes, which a model folder can be held to (``trainer.flavor``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from forge_core import DataError, UsageError
from forge_titan.torchtitan_api import llama3, qwen3

Configs = Mapping[str, Callable[..., Any]]


def check_flavor(name: str, flavor: str, model: Any, folder: Path) -> None:
    """Make sure that a folder's model has a flavour's sizes.

    Args:
        name: ``llama3`` or ``qwen3``.
        flavor: such as ``8B``.
        model: TorchTitan's config of the folder's model.
        folder: where it is.

    Raises:
        UsageError: TorchTitan has no such flavour; names those it has.
        DataError: the folder's model is another; names the sizes.
    """
    flavors = _dense(llama3.llama3_configs if name == "llama3" else qwen3.qwen3_configs)
    if flavor not in flavors:
        near = get_close_matches(flavor.upper(), flavors, n=1)
        raise UsageError(
            f"trainer.flavor: TorchTitan has no {name} {flavor!r}"
            f"{f'; did you mean {near[0]}?' if near else ''} (it has: {', '.join(flavors)})"
        )
    wanted = _sizes(flavors[flavor](attn_backend="flex"))
    wrong = [
        f"{what} {size}, not {wanted[what]}"
        for what, size in _sizes(model).items()
        if size != wanted[what]
    ]
    if wrong:
        raise DataError(
            f"model folder {folder}: not TorchTitan's {name} {flavor}: {', '.join(wrong)}"
        )


def _dense(configs: Configs) -> Configs:
    """Those without experts: folders of such models are not taken."""
    return {
        name: build
        for name, build in configs.items()
        if not any("moe" in argument for argument in inspect.signature(build).parameters)
    }


def _sizes(model: Any) -> dict[str, object]:
    layer = model.layers[0]
    attention = layer.attention
    return {
        "vocabulary": model.vocab_size,
        "width": model.dim,
        "layers": len(model.layers),
        "query heads": attention.n_heads,
        "key and value heads": attention.n_kv_heads or attention.n_heads,
        "head width": attention.head_dim or model.dim // attention.n_heads,
        "feed-forward width": layer.feed_forward.w1.out_features,
        "tied embeddings": model.enable_weight_tying,
    }
