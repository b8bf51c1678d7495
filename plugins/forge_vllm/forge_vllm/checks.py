"""What the generator ``vllm`` refuses, warns of and says of itself before anything starts; as far
as is known without vLLM. Imports nothing heavy."""

from __future__ import annotations

import os

from forge_core import BuildContext, ConfigError, Location, TokenLimit
from forge_local.devices import visible_devices
from forge_models.rope import stored_boundaries
from forge_models.shape import model_config
from forge_vllm import api_keys
from forge_vllm.argument_names import check_names, for_cpu, require_vllm
from forge_vllm.settings import VllmSettings
from forge_vllm.supported import check_early

OWNED_ENGINE_KEYS = {
    "model": "model.path says it",
    "tokenizer": "it is the model folder's",
    "trust_remote_code": "model.trust_remote_code says it",
    "runner": "a generator generates",
    "logprobs_mode": "logprobs are those of the distribution sampled from",
    "worker_extension_cls": "new weights come through Forge's own",
    "data_parallel_size": "generator.replicas says it",
}
"""Engine arguments that Forge sets -> why they cannot be set."""

MEMORY_KEYS = {"gpu_memory_utilization", "kv_cache_memory_bytes"}
"""Engine arguments that bound its memory; without one it takes 0.92 of a GPU."""

BESIDE_A_TRAINER = {"engine": {"gpu_memory_utilization": 0.3}}
"""The trainer holds its weights four times and a pass's activations; the engine holds its weights
once, and the KV cache."""

_SECTION = "the sampling section says it"
_CONTRACT = "a completion's tokens and logprobs need it as Forge sets it"
OWNED_SAMPLING_KEYS = {
    "n": "the recipe says how many",
    "temperature": _SECTION,
    "top_p": _SECTION,
    "top_k": _SECTION,
    "max_tokens": _SECTION,
    "seed": "it is derived from training.seed",
    "stop": "each request says its own",
    "stop_token_ids": "they are the model's",
    "ignore_eos": "only stop_token_ids stop",
    "logprobs": _CONTRACT,
    "flat_logprobs": _CONTRACT,
    "detokenize": _CONTRACT,
    "output_kind": _CONTRACT,
    "skip_clone": _CONTRACT,
    "repetition_detection": "a completion ends at a stop or its length, and vLLM says neither then",
}
"""Sampling parameters that Forge sets -> why they cannot be set."""

FAITHFUL_SAMPLING_KEYS = frozenset(
    {
        "include_stop_str_in_output",
        "logprob_token_ids",
        "output_text_buffer_length",
        "prompt_logprob_start",
        "prompt_logprob_token_ids",
        "prompt_logprobs",
        "routed_experts_prompt_start",
        "skip_reading_prefix_cache",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stream_interval",
    }
)
"""Sampling parameters that leave the distribution which tokens are drawn from as it is. Every other
may change it, also one that a later vLLM brings."""

NEUTRAL_SAMPLING = {
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
    "watermarking": False,
}
"""Values of other sampling parameters at which they change nothing; so do None and empty ones."""

ALTERING_ENGINE_KEYS = ("logits_processors", "watermark_config")
"""Engine arguments that change the distribution which tokens are drawn from."""


_PLAIN = "the address is plain HTTP on a host and a port; a proxy before it can be more"
OWNED_SERVER_KEYS = {
    "ssl_keyfile": _PLAIN,
    "ssl_certfile": _PLAIN,
    "ssl_ca_certs": _PLAIN,
    "ssl_cert_reqs": _PLAIN,
    "ssl_ciphers": _PLAIN,
    "enable_ssl_refresh": _PLAIN,
    "uds": _PLAIN,
    "grpc_port": _PLAIN,
    "data_parallel_supervisor_port": "generator.replicas says how many serve",
    "api_key": api_keys.INSTEAD,
}
"""Server arguments that Forge has no use for -> why they cannot be set."""


def check_generator(settings: VllmSettings, context: BuildContext) -> None:
    """Refuse what the generator would refuse, as far as is known without vLLM.

    Raises:
        ConfigError: vLLM is not installed, a key is unknown to it or is Forge's, or more than one
            process is asked for.
    """
    if context.world_size != 1:
        raise ConfigError(
            f"generator.procs: vLLM makes its own processes; instead of {context.world_size} ask "
            f"for generator.engine.tensor_parallel_size={context.world_size}"
        )
    require_vllm()
    check_names(
        "generator.engine", settings.engine, "engine/arg_utils.py", "EngineArgs", OWNED_ENGINE_KEYS
    )
    check_names(
        "generator.sampling",
        settings.sampling,
        "sampling_params.py",
        "SamplingParams",
        OWNED_SAMPLING_KEYS,
    )
    structured = settings.sampling.get("structured_outputs", {})
    if not isinstance(structured, dict):
        raise ConfigError("generator.sampling.structured_outputs: must be a mapping")
    check_names(
        "generator.sampling.structured_outputs",
        structured,
        "sampling_params.py",
        "StructuredOutputsParams",
        {},
    )
    check_early(context.model, settings.engine)
    if settings.engine_process:
        check_transport(context, "generator.engine_process")
    if settings.serve is None:
        return
    check_transport(context, "generator.serve")
    if settings.engine_process is False:
        raise ConfigError(
            "generator.serve: needs the engine in a process of its own; leave "
            "generator.engine_process out"
        )
    check_names(
        "generator.serve",
        [key for key in settings.serve if key not in api_keys.NAMES],
        "entrypoints/launchers/cli_args.py",
        "BaseFrontendArgs",
        OWNED_SERVER_KEYS,
    )
    api_keys.check_sources(settings.serve)


def alters_sampling(settings: VllmSettings) -> list[str]:
    """Keys by which tokens are drawn from another distribution than the model's."""
    sampling = [
        f"generator.sampling.{key}"
        for key, value in settings.sampling.items()
        if key not in FAITHFUL_SAMPLING_KEYS
        and value not in (None, [], {})
        and value != NEUTRAL_SAMPLING.get(key)
    ]
    engine = [f"generator.engine.{k}" for k in ALTERING_ENGINE_KEYS if settings.engine.get(k)]
    return sampling + engine


def generator_cautions(settings: VllmSettings, context: BuildContext) -> list[str]:
    """An address that anybody can use. And vLLM takes longrope's long factors for every sequence
    if its window is beyond their boundary; trainers (and transformers) take those of each
    sequence's own length."""
    return [*_open_address(settings), *_long_factors(settings, context)]


def _open_address(settings: VllmSettings) -> list[str]:
    serve = settings.serve or {}
    host = serve.get("host", "127.0.0.1")
    has_key = any(serve.get(name) for name in api_keys.NAMES) or os.environ.get("VLLM_API_KEY")
    if has_key or host in ("127.0.0.1", "::1", "localhost"):
        return []
    return [
        f"generator.serve.host: anyone who reaches {host or 'this machine'} can use the policy "
        "without a key; give generator.serve.api_key_file or api_key_env"
    ]


def _long_factors(settings: VllmSettings, context: BuildContext) -> list[str]:
    config = model_config(context.model) or {}
    window = settings.engine.get("max_model_len") or config.get("max_position_embeddings")
    boundaries = stored_boundaries(config)
    if not boundaries or not isinstance(window, int) or window <= boundaries[0]:
        return []
    return [
        f"generator.engine.max_model_len: {window} is beyond {boundaries[0]}, where the model's "
        "rotary frequencies change (longrope). vLLM then uses the long ones for short sequences "
        f"too, and its logprobs differ from the trainer's; set it to at most {boundaries[0]}"
    ]


def generator_location(settings: VllmSettings) -> Location:
    """In the engine's process, where it has one: if the settings say so, serve, or there is a GPU.

    A serving generator has a process of the runtime's besides: what it answers is on the event
    loop, and a trainer's steps would hold that up.
    """
    serves, on_cpu = settings.serve is not None, for_cpu()
    own_process = settings.engine_process
    return Location(
        cuda=not on_cpu and bool(visible_devices()),
        own_process=serves or not on_cpu if own_process is None else own_process,
        isolate=serves,
        shared_gpu={} if MEMORY_KEYS & settings.engine.keys() else BESIDE_A_TRAINER,
    )


def check_transport(context: BuildContext, cause: str) -> None:
    """Refuse a transport that does not reach an engine in a process of its own.

    Args:
        context: with the transport.
        cause: what puts the engine there.

    Raises:
        ConfigError: names both.
    """
    transport = context.transport
    if transport is not None and transport.reach == "process":
        raise ConfigError(
            f"transport.use: transport {transport.name!r} works within one process, and {cause} "
            "puts the engine into another; use --transport shm"
        )


def most_tokens(settings: VllmSettings) -> TokenLimit:
    """Prompt and completion fit into the engine's window."""
    length = settings.engine.get("max_model_len")
    tokens = length if isinstance(length, int) else None  # vLLM also takes text such as 16k
    return TokenLimit(tokens=tokens, key="generator.engine.max_model_len")
