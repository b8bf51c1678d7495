"""Model folders in Hugging Face layout: made, checked and loaded.

A folder holds ``config.json``, weights and a tokenizer. A model travels between the parts of a run
in no other form, so everything that may be wrong with one is found here, before a run starts, and
said in one line.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import ConfigError, DataError, ForgeError
from forge_core.command import forge_command
from forge_models.architectures import causal_language_models
from forge_models.characters import character_tokenizer, check_characters
from forge_models.trust import (
    check_code,
    check_weights,
    has_safe_weights,
    has_tokenizer_code,
    needs_code,
    runs_code,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from forge_core import ModelInit, ModelSection

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")

TOKENIZER_EXTRAS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
)
"""What may be beside them."""

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
"""How models are called on the Hugging Face hub: ``organization/model``."""

LEGACY_FIELDS = frozenset({"rope_theta", "rope_scaling"})
"""Names that transformers itself still folds into ``rope_parameters``."""


def materialize(model: ModelSection, folder: Path, seed: int) -> Path:
    """Turn the model section into one folder in Hugging Face layout.

    Args:
        model: ``path`` (or a ``name`` that is a local folder) is checked and returned as it is;
            ``init`` makes a model and a character tokenizer from a seed.
        folder: where a model from ``init`` is written; made if need be.
        seed: used where ``init.seed`` is not given.

    Raises:
        ConfigError: the section names no model, or ``init`` has a field that is unknown to its
            architecture.
        DataError: a file is missing, or its model type is not a causal language model.
    """
    if model.init is not None:
        return _initialize(model.init, model.dtype, folder, seed)
    return _checked_source(model)


def check_model(model: ModelSection, shipped: Collection[str] = ()) -> None:
    """Check a model section before anything is started, without importing transformers.

    Args:
        model: of the config.
        shipped: names of the models that ``forge model`` can make.

    Raises:
        ConfigError: the section names no model, or the alphabet of ``init`` cannot be used.
        DataError: there is no such folder, a file is missing in it, or transformers has no causal
            language model of its type.
    """
    if model.init is None:
        _checked_source(model, shipped)
        return
    check_characters(model.init.characters)
    _check_model_type(model.init.architecture, "model.init.architecture")


def check_named_model(name: str, model: ModelSection, shipped: Collection[str] = ()) -> None:
    """``check_model`` for one of ``models:``.

    Raises:
        ConfigError, DataError: as ``check_model``; names the model.
    """
    try:
        check_model(model, shipped)
    except ForgeError as error:
        said = str(error)
        key = f"models.{name}"
        named = said.startswith("model.")
        raise type(error)(key + said[5:] if named else f"{key}: {said}") from error


def check_init(init: ModelInit) -> None:
    """Check all of ``model.init``. Imports transformers.

    Raises:
        ConfigError: as ``check_model``, or ``init.config`` has a field that is unknown to its
            architecture.
        DataError: transformers has no such architecture.
    """
    _model_config(init, character_tokenizer(init.characters))


def check_folder(
    folder: Path, *, trust_remote_code: bool = False, allow_pickle: bool = False
) -> Path:
    """Make sure that a folder can be loaded as far as its files tell, and return it.

    Args:
        folder: in Hugging Face layout.
        trust_remote_code: Python code in the folder may run (``model.trust_remote_code``).
        allow_pickle: its weights may be pickled (``model.allow_pickle``).

    Raises:
        DataError: names the missing file, the model type that is not supported, or what the folder
            needs that is not allowed.
    """
    folder = folder.expanduser()
    if not folder.is_dir():
        raise DataError(f"model folder {folder}: no such folder")
    config = folder / "config.json"
    if not config.is_file():
        raise DataError(f"model folder {folder}: config.json is missing{_run_folder_hint(folder)}")
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
        model_type = fields["model_type"]
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"model folder {folder}: config.json is not a JSON object with model_type"
        ) from None
    check_code(folder, fields, trust_remote_code=trust_remote_code)
    if not (trust_remote_code and runs_code(folder, fields)):
        _check_model_type(model_type, f"model folder {folder}: config.json")
    check_weights(folder, allow_pickle=allow_pickle)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DataError(f"model folder {folder}: no tokenizer ({', '.join(TOKENIZER_FILES)})")
    if not trust_remote_code and has_tokenizer_code(folder):
        load_tokenizer(folder)  # only transformers knows whether it has a class of its own for it
    return folder


def load_model(
    folder: Path,
    dtype: torch.dtype | str = "float32",
    device: torch.device | str = "cpu",
    *,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """Load a causal language model, in evaluation mode.

    Args:
        folder: in Hugging Face layout.
        dtype: ``torch.float32``, or its name.
        device: where the weights go.
        trust_remote_code: as for ``check_folder``.
        allow_pickle: as for ``check_folder``.

    Raises:
        DataError: the folder is incomplete or needs what is not allowed, or its weights do not fit
            its config. (Transformers would start with random numbers in place of a missing weight.)
    """
    from pickle import UnpicklingError

    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    check_folder(folder, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    _quiet()
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            use_safetensors=has_safe_weights(folder),
            weights_only=True,
        )
    except UnpicklingError as error:
        raise DataError(
            f"model folder {folder}: its pickled weights are damaged or hold more than tensors, "
            "and are not read; convert them to safetensors"
        ) from error
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"model folder {folder}: {_first_line(error)}") from error
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            name = sorted(map(str, info[kind]))[0]
            word = "have no" if kind == "missing_keys" else "have another shape for"
            raise DataError(f"model folder {folder}: the weights {word} {name}")
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder.

    Args:
        folder: in Hugging Face layout.
        trust_remote_code: Python code in the folder may run (``model.trust_remote_code``).

    Raises:
        DataError: there is none, it cannot be read, or it needs code that may not run.
    """
    from transformers import AutoTokenizer

    _quiet()
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise needs_code(folder) from error
        raise DataError(f"tokenizer in {folder}: {_first_line(error)}") from error
    return tokenizer


def model_tokenizer(model: ModelSection) -> PreTrainedTokenizerBase:
    """The tokenizer of a model section, before its model is made.

    Raises:
        ConfigError: the alphabet of ``init`` cannot be used, or the section names no model.
        DataError: there is no such folder, or its tokenizer cannot be read.
    """
    if model.init is not None:
        return character_tokenizer(model.init.characters)
    return load_tokenizer(_checked_source(model), trust_remote_code=model.trust_remote_code)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, byte for byte, from one model folder to another.

    Python modules come along: a tokenizer or config of the model's own is loaded from them.
    """
    for name in (*TOKENIZER_FILES, *TOKENIZER_EXTRAS, *(f.name for f in source.glob("*.py"))):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _checked_source(model: ModelSection, shipped: Collection[str] = ()) -> Path:
    """The folder that ``path`` or ``name`` names, checked."""
    name = model.name
    if model.path is None and not name:
        raise ConfigError("model: give path (a folder in Hugging Face layout) or init")
    folder = model.path or Path(name)
    if folder.expanduser().is_dir():
        return check_folder(
            folder, trust_remote_code=model.trust_remote_code, allow_pickle=model.allow_pickle
        )
    if model.path is None:
        raise DataError(
            f"model.name: {name!r} is no local folder; download it first "
            f"(hf download {name} --local-dir DIR) and set model.path=DIR"
        )
    hint = ""
    if folder.name in shipped:
        hint = f"; make it with: {forge_command()} model {folder.name} {folder}"
    elif HUB_NAME.fullmatch(name):
        hint = f"; download it first: hf download {name} --local-dir {folder}"
    elif HUB_NAME.fullmatch(str(folder)) and not folder.parent.is_dir():
        local = f"models/{folder.name}"
        hint = (
            "; if it is a model on the Hugging Face hub, download it first (hf download "
            f"{folder} --local-dir {local}) and set model.path={local}"
        )
    raise DataError(f"model.path: {folder}: no such folder{hint}")


def _run_folder_hint(folder: Path) -> str:
    """Where the model is, if the folder is a run's."""
    checkpoints = [
        (int(step), path)
        for path in (folder / "checkpoints").glob("step_*")
        if (step := path.name.removeprefix("step_")).isdigit()
    ]
    if not checkpoints:
        return ""
    return f"; it is a run folder, whose newest model is {max(checkpoints)[1]}"


def _initialize(init: ModelInit, dtype: str, folder: Path, seed: int) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    _quiet()
    tokenizer = character_tokenizer(init.characters)
    config = _model_config(init, tokenizer)
    seed = seed if init.seed is None else init.seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
            raise ConfigError(f"model.init.config: {_first_line(error)}") from error
    tokenizer.model_max_length = getattr(config, "max_position_embeddings", 2**30)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _model_config(init: ModelInit, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    import dataclasses

    from transformers import AutoConfig

    _check_model_type(init.architecture, "model.init.architecture")
    kind = type(AutoConfig.for_model(init.architecture))
    allowed = {field.name for field in dataclasses.fields(kind)}
    allowed |= set(kind.attribute_map) | LEGACY_FIELDS
    problems = [
        f"model.init.config.{name}: {init.architecture} has no such field{_near(name, allowed)}"
        for name in init.config
        if name not in allowed
    ]
    if "vocab_size" in init.config and init.config["vocab_size"] != len(tokenizer):
        problems.append(
            f"model.init.config.vocab_size: the alphabet gives {len(tokenizer)}; leave it out"
        )
    if problems:
        raise ConfigError(problems)
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    try:
        return AutoConfig.for_model(init.architecture, **{**tokens, **init.config})
    except Exception as error:  # huggingface_hub's validation errors share no public base
        raise ConfigError(f"model.init.config: {_last_line(error)}") from error


def _check_model_type(model_type: object, where: str) -> None:
    known = causal_language_models()
    if not isinstance(model_type, str) or model_type not in known:
        near = _near(str(model_type), set(known))
        raise DataError(
            f"{where}: {model_type!r} is no causal language model known to transformers{near}"
        )


def _quiet() -> None:
    """Keep progress bars and advice off the terminal: it belongs to the run's own view."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _near(name: str, allowed: set[str]) -> str:
    match = get_close_matches(name, sorted(allowed), n=1)
    return f" (did you mean {match[0]}?)" if match else ""


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def _first_line(error: BaseException) -> str:
    return next(iter(_lines(error)), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return (_lines(error) or [type(error).__name__])[-1]
