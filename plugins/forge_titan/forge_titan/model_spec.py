"""From a ``config.json`` in Hugging Face layout to a model of TorchTitan's own definitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_core import ModelSection
from forge_models.folder import check_folder
from forge_titan.attention import PackedAttention
from forge_titan.supported import check_config, check_model, check_rope
from forge_titan.torchtitan_api import (
    ComplexRoPE,
    CosSinRoPE,
    Embedding,
    FlexAttention,
    Linear,
    Llama3Model,
    Llama3TransformerBlock,
    ModelSpec,
    Qwen3Model,
    Qwen3TransformerBlock,
    RMSNorm,
    llama3,
    make_ffn_config,
    make_gqa_config,
    qwen3,
    skip_param_init,
)

_SKIP = {"weight": skip_param_init, "bias": skip_param_init}
"""Weights always come from a folder: drawing random ones first would be waste."""


def model_spec(folder: Path) -> ModelSpec:
    """TorchTitan's definition of the model in a folder, of whatever size it is.

    Raises:
        DataError: the folder is incomplete, or TorchTitan has no such model: names the field and
            what there is.
    """
    # Nothing in the folder runs, and pickled weights are not read: both are refused further on,
    # with what this trainer has.
    check_folder(folder, trust_remote_code=True, allow_pickle=True)
    check_model(ModelSection(path=folder))
    config = _config(folder)
    where = f"model folder {folder}: config.json"
    check_config(config.to_dict(), where)
    module = qwen3 if config.model_type == "qwen3" else llama3
    # The registry's entry brings the functions; its sizes give way to the folder's.
    spec = module.model_registry("debugmodel")
    return replace(spec, flavor=folder.name, model=_model(config, where))


def padding_token(folder: Path) -> int | None:
    """The id of the padding token in a folder's config."""
    token: int | None = _config(folder).pad_token_id
    return token


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _model(config: Any, where: str) -> Any:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    is_qwen = config.model_type == "qwen3"
    block = Qwen3TransformerBlock if is_qwen else Llama3TransformerBlock
    rope = _rope(config, where)

    def norm(width: int) -> Any:
        return RMSNorm.Config(normalized_shape=width, eps=config.rms_norm_eps, param_init=_SKIP)

    layers = [
        block.Config(
            attention_norm=norm(hidden),
            ffn_norm=norm(hidden),
            attention=make_gqa_config(
                dim=hidden,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_key_value_heads,
                head_dim=rope.dim,
                wqkv_param_init=_SKIP,
                wo_param_init=_SKIP,
                inner_attention=PackedAttention.Config(),
                # One matrix for each projection, as in the folder: names, gathering and resuming
                # on another number of ranks stay plain.
                fuse_qkv=False,
                rope=rope,
                qk_norm=norm(rope.dim) if is_qwen else None,
            ),
            feed_forward=make_ffn_config(
                dim=hidden,
                hidden_dim=config.intermediate_size,
                w1_param_init=_SKIP,
                w2w3_param_init=_SKIP,
            ),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return (Qwen3Model if is_qwen else Llama3Model).Config(
        dim=hidden,
        vocab_size=vocabulary,
        enable_weight_tying=bool(config.tie_word_embeddings),
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=hidden, param_init=_SKIP
        ),
        norm=norm(hidden),
        lm_head=Linear.Config(in_features=hidden, out_features=vocabulary, param_init=_SKIP),
        layers=layers,
    )


def _rope(config: Any, where: str) -> Any:
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    check_rope(config.model_type, kind, where)
    sizes = {
        "dim": width,
        "max_seq_len": config.max_position_embeddings,
        "theta": parameters["rope_theta"],
    }
    if kind == "default":
        return (CosSinRoPE if config.model_type == "qwen3" else ComplexRoPE).Config(**sizes)
    return ComplexRoPE.Config(
        **sizes,
        scaling="llama",
        scaling_factor=parameters["factor"],
        low_freq_factor=parameters["low_freq_factor"],
        high_freq_factor=parameters["high_freq_factor"],
        original_max_position_embeddings=parameters["original_max_position_embeddings"],
    )


def use_flex_attention(spec: ModelSpec) -> None:
    """Put TorchTitan's own FlexAttention back, for context parallelism on an accelerator."""
    for _, _, parent, name in list(spec.model.traverse(PackedAttention.Config)):
        setattr(parent, name, FlexAttention.Config())
