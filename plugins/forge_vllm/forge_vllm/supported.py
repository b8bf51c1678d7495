"""Models that vLLM cannot run, found before it crashes on them or answers with a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.errors import ConfigError, DataError
from forge_vllm.names import vllm_version

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
