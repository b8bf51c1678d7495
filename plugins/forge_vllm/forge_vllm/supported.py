"""Models that vLLM cannot run, found before it crashes on them or answers with a page."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import ConfigError, DataError, ModelSection
from forge_models.architectures import causal_language_models
from forge_models.shape import model_config
from forge_vllm.argument_names import require_vllm, vllm_version

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs


def check_model(args: AsyncEngineArgs, *, separate: bool) -> None:
    """Refuse a model that the engine has no code for.

    Args:
        args: vLLM's arguments.
        separate: the engine has a process of its own.

    Raises:
        DataError: the architecture, or on a CPU the head dimension, is not one of vLLM's.
        ConfigError: vLLM would take transformers' own model, and change it for the trainer too.
    """
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform

    if args.model_impl != "vllm" and not separate:
        raise ConfigError(
            f"generator.engine.model_impl: {args.model_impl} changes transformers' classes in "
            "the engine's process, and the trainer's are among them; set "
            "generator.engine_process=true"
        )
    folder = Path(args.model)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = config.get("architectures") or ["no architecture"]
    known = ModelRegistry.get_supported_archs()
    if args.model_impl == "vllm" and not known & set(architectures):
        raise DataError(
            f"model folder {folder}: vLLM {vllm_version()} has no {architectures[0]}; "
            "generator.engine.model_impl=transformers with generator.engine_process=true may run "
            "it, more slowly"
        )
    if current_platform.is_cpu():
        _check_head_dimension(args, folder)


def check_early(model: ModelSection, engine: Mapping[str, Any]) -> None:
    """Refuse before a start what can be recognized without importing vLLM.

    Args:
        model: the section; its folder may not be there yet.
        engine: the settings' engine arguments.

    Raises:
        DataError: vLLM has no code for the architecture.
        ConfigError: ``max_model_len`` is more than the model's window.
    """
    config = model_config(model)
    if config is None:
        return
    if model.init is not None:
        architectures = [causal_language_models().get(model.init.architecture)]
    else:
        architectures = config.get("architectures") or []
    # Other packages may register more models with vLLM, which its source does not list.
    plugins = entry_points(group="vllm.general_plugins")
    extended = any(not plugin.value.startswith("vllm.") for plugin in plugins)
    if architectures and engine.get("model_impl", "vllm") == "vllm" and not extended:
        known = _listed_architectures()
        if known and not known & set(architectures):
            where = "model.init" if model.init is not None else f"model folder {model.path}"
            raise DataError(
                f"{where}: vLLM {vllm_version()} has no {architectures[0]}; "
                "generator.engine.model_impl=transformers with generator.engine_process=true may "
                "run it, more slowly"
            )
    window, wanted = config.get("max_position_embeddings"), engine.get("max_model_len")
    scaled = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(window, int) and isinstance(wanted, int) and wanted > window and not scaled:
        raise ConfigError(
            f"generator.engine.max_model_len: {wanted} is more than the {window} positions the "
            "model knows"
        )


def _listed_architectures() -> set[str]:
    """The architectures in vLLM's registry, read from its source."""
    source = require_vllm() / "model_executor" / "models" / "registry.py"
    if not source.is_file():
        return set()
    return {
        key.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _check_head_dimension(args: AsyncEngineArgs, folder: Path) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    model = args.create_model_config()
    size, sizes = model.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes and not model.use_mla:
        allowed = ", ".join(map(str, sizes))
        raise DataError(
            f"model folder {folder}: a head dimension of {size}; vLLM's attention on a CPU has "
            f"kernels for {allowed}"
        )
