"""From settings to vLLM's engine arguments, and from its refusals to one line."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

from pydantic import ValidationError

from forge_core import BuildContext, ConfigError
from forge_vllm.settings import VllmSettings

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

WORKER_EXTENSION = "forge_vllm.worker_extension.WeightReceiver"

CPU_KV_CACHE_BYTES = 1 << 30
"""On a CPU vLLM would take most of the host's memory; Forge shares it with the trainer."""


def set_environment() -> None:
    """What vLLM reads from the environment, unless it says otherwise. Before vLLM is imported."""
    for name, value in {
        # Its log lines would mix with the run's own.
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # The executor stays in the engine's process, and its threads where the system puts them.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # A fork would take over the locks of this process's threads, which a run has several of.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }.items():
        os.environ.setdefault(name, value)
    # Outside its own command vLLM does not set its logger up, and its warnings come out bare.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())


def engine_args(settings: VllmSettings, context: BuildContext) -> AsyncEngineArgs:
    """vLLM's arguments: the contract's, over those of the settings, over Forge's defaults."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    path = str(context.model.path)
    defaults = {
        "dtype": default_dtype(context, on_cpu=current_platform.is_cpu()),
        "seed": context.seed % 2**31,
        "generation_config": "vllm",
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "served_model_name": "policy",
        # Not transformers' own, which vLLM changes for everybody in its process.
        "model_impl": "vllm",
    }
    if current_platform.is_cpu():
        # Compiling a model takes minutes on a CPU.
        defaults["enforce_eager"] = True
        if "gpu_memory_utilization" not in settings.engine:
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    contract = {
        "model": path,
        "tokenizer": path,
        "trust_remote_code": context.model.trust_remote_code,
        "runner": "generate",
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
    }
    try:
        return AsyncEngineArgs(**{**defaults, **settings.engine, **contract})
    except (TypeError, ValueError) as error:
        raise refusal(error) from error


def default_dtype(context: BuildContext, *, on_cpu: bool) -> str:
    """Type that the engine keeps weights and computes in: on a GPU, what the trainer computes in.

    There its fast attention kernels take no float32. A CPU has no such kernels, and computes in
    float32 faster.
    """
    if context.distributed.precision == "bf16" and not on_cpu:
        return "bfloat16"
    return context.model.dtype


def refusal(error: BaseException) -> ConfigError:
    """vLLM's reason for not starting, in one line."""
    # What follows the first sentence is advice about vLLM's own command.
    text = re.split(r"(?<=[.!?])\s+(?=[A-Z])", reason(error))[0]
    if "KV cache" in text or "cache blocks" in text:
        text += (
            " (room for the KV cache: generator.engine.kv_cache_memory_bytes or "
            "gpu_memory_utilization; what one sequence needs of it: max_model_len)"
        )
    return ConfigError(f"generator vllm: vLLM did not start: {text}")


def reason(error: BaseException) -> str:
    """What an exception of vLLM's says, in one line."""
    if isinstance(error, ValidationError):
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        message = found["msg"].removeprefix("Value error, ")
        text = f"{place}: {message}" if place else message
    else:
        text = str(error) or type(error).__name__
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
