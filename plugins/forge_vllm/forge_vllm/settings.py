"""Settings of the generator ``vllm``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from forge_core import Settings


class VllmSettings(Settings):
    """The vLLM engine."""

    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="vLLM's engine arguments (AsyncEngineArgs) by its own names, such as "
        "gpu_memory_utilization, kv_cache_memory_bytes, max_model_len, tensor_parallel_size",
    )
    sampling: dict[str, Any] = Field(
        default_factory=dict,
        description="vLLM's sampling parameters (SamplingParams) by its own names for every "
        "request; the sampling section has the rest. What changes the distribution (min_p, "
        "repetition_penalty, logit_bias, ...) is refused beside losses with importance ratios",
    )
    engine_process: bool | None = Field(
        None,
        description="run the engine in a process of its own; null: only where there is a GPU",
    )
    serve: dict[str, Any] | None = Field(
        None,
        description="an OpenAI-compatible address of the policy: vLLM's server arguments "
        "(FrontendArgs) by its own names, such as host, port (0: a free one), tool_call_parser; "
        "api_key_file or api_key_env: where the keys are that clients have to show; replica i "
        "listens on port + i, from a process of its own (isolate); null: no address",
    )
    pause: Literal["keep", "wait", "abort"] = Field(
        "keep",
        description="what becomes of requests in flight when weights change: keep (they go on "
        "with the new weights), wait (they finish first), abort (they end as cancelled)",
    )
