"""What a model folder may do to this machine: which of its files would run code when loaded.

Read from the files alone, so that a run is refused before anything of the folder is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import DataError
from forge_models.architectures import causal_language_models
from forge_models.shape import model_config

if TYPE_CHECKING:
    from forge_core import ModelSection

SAFE_WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"

WEIGHT_FILES = (SAFE_WEIGHTS, PICKLED_WEIGHTS)
"""Whole weights; each may also be sharded, with ``<file>.index.json`` naming the parts."""

_MODEL_CLASSES = ("AutoConfig", "AutoModelForCausalLM")


def check_code(folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> None:
    """Refuse a folder that cannot be loaded without running code of its own.

    Where transformers has the model type itself, the folder's code is not needed: it is left alone
    unless ``trust_remote_code`` asks for it.

    Args:
        folder: in Hugging Face layout.
        config: its ``config.json``.
        trust_remote_code: ``model.trust_remote_code``.

    Raises:
        DataError: names the code and the key that allows it.
    """
    if trust_remote_code:
        return
    if config.get("model_type") not in causal_language_models():
        code = [*_references(config, _MODEL_CLASSES), *_references(_tokenizer_config(folder))]
        if code:
            raise needs_code(folder, code[0])
    for kernel in _kernels(config):
        raise DataError(
            f"model folder {folder}: config.json asks for the attention kernel {kernel!r}, which "
            "is code from a hub; set model.trust_remote_code=true to run it, if you trust it"
        )


def check_section(model: ModelSection) -> None:
    """``check_code`` for a model section whose ``config.json`` is there already; else nothing.

    Raises:
        DataError: as ``check_code``.
    """
    config = model_config(model)
    if config is not None and model.init is None:
        folder = model.path or Path(model.name)
        check_code(folder, config, trust_remote_code=model.trust_remote_code)


def needs_code(folder: Path, code: str = "") -> DataError:
    """The error for a folder whose code may not run.

    Args:
        folder: in Hugging Face layout.
        code: such as ``modeling_mine.Model``; empty if it is not known which.
    """
    named = f" ({code})" if code else ""
    return DataError(
        f"model folder {folder}: needs Python code that comes with it{named}, which does not run "
        "by default; read that code, and set model.trust_remote_code=true if you trust it"
    )


def runs_code(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether loading the folder with ``trust_remote_code`` can take its model class from it."""
    return any(_references(config, _MODEL_CLASSES))


def has_tokenizer_code(folder: Path) -> bool:
    """Whether the folder brings code for its tokenizer, needed or not."""
    return any(_references(_tokenizer_config(folder)))


def has_safe_weights(folder: Path) -> bool:
    """Whether there are safetensors, whole or sharded; these are read wherever there are both."""
    return _present(folder, SAFE_WEIGHTS)


def check_weights(folder: Path, *, allow_pickle: bool) -> None:
    """Make sure that the weights are there, in a form that may be read.

    Raises:
        DataError: a file is missing, or the weights are pickled and ``allow_pickle`` is false.
    """
    name = next((name for name in WEIGHT_FILES if _present(folder, name)), None)
    if name is None:
        raise DataError(f"model folder {folder}: no weights ({' or '.join(WEIGHT_FILES)})")
    if name == PICKLED_WEIGHTS and not allow_pickle:
        raise DataError(
            f"model folder {folder}: its weights are pickled ({name}), and pickle files can hold "
            "code; convert them to safetensors, or set model.allow_pickle=true to read them"
        )
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return
    try:
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"model folder {folder}: {index.name} has no weight_map") from None
    for part in parts:
        if not (folder / part).is_file():
            raise DataError(f"model folder {folder}: {part}, named in {index.name}, is missing")


def _present(folder: Path, name: str) -> bool:
    return (folder / name).is_file() or (folder / f"{name}.index.json").is_file()


def _references(
    config: Mapping[str, Any], classes: tuple[str, ...] = ("AutoTokenizer",)
) -> Iterator[str]:
    """Code that a config names under ``auto_map``, such as ``modeling_mine.Model``."""
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, Mapping):
        # An old form: the tokenizer's slow and fast classes without a name.
        auto_map = {"AutoTokenizer": auto_map}
    for name in classes:
        value = auto_map.get(name)
        for reference in value if isinstance(value, list | tuple) else [value]:
            if isinstance(reference, str):
                yield reference


def _kernels(config: Mapping[str, Any]) -> Iterator[str]:
    """Kernels of a hub that a config, or one nested in it, asks for: ``organization/name``."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _kernels(value)
        elif key.endswith("attn_implementation") and isinstance(value, str) and "/" in value:
            yield value


def _tokenizer_config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # loading the tokenizer says what is wrong with the file
    return config if isinstance(config, Mapping) else {}
