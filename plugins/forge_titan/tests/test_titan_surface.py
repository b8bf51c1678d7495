"""What this plugin uses of TorchTitan is there, as it is used. Fails first when it changes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import forge_titan
from forge_titan import torchtitan_api
from forge_titan.cpu import LOGGER

PACKAGE = Path(forge_titan.__file__).parent


def test_one_module_imports_torchtitan() -> None:
    importers = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.split(".")[0] == "torchtitan" for name in names):
                importers.add(path.name)
    assert importers <= {"torchtitan_api.py", "cpu.py"}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (
            torchtitan_api.make_gqa_config,
            "dim n_heads n_kv_heads head_dim wqkv_param_init wo_param_init "
            "inner_attention fuse_qkv rope qk_norm",
        ),
        (torchtitan_api.make_ffn_config, "dim hidden_dim w1_param_init w2w3_param_init"),
        (torchtitan_api.apply_compile, "model compile_config parallel_dims"),
        (
            torchtitan_api.prepare_context_parallel_input,
            "inputs labels extra_kwargs cp_mesh device load_balancer_type",
        ),
        (torchtitan_api.clip_grad_norm_, "parameters max_norm foreach pp_mesh ep_enabled"),
        (torchtitan_api.LRSchedulersContainer, "optimizers lr_lambda"),
        (torchtitan_api.Llama3Model.forward, "tokens positions attention_masks"),
        (torchtitan_api.Qwen3Model.forward, "tokens positions attention_masks"),
        (torchtitan_api.FlexAttention.forward, "q_BLNH k_BLNH v_BLNH attention_masks scale"),
    ],
)
def test_arguments(function: Any, names: str) -> None:
    assert set(names.split()) <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (
            torchtitan_api.ModelSpec,
            "name flavor model parallelize_fn pipelining_fn state_dict_adapter",
        ),
        (
            torchtitan_api.Llama3Model.Config,
            "dim vocab_size lm_head tok_embeddings norm layers enable_weight_tying",
        ),
        (torchtitan_api.RMSNorm.Config, "normalized_shape eps param_init"),
        (
            torchtitan_api.ComplexRoPE.Config,
            "dim max_seq_len theta scaling scaling_factor low_freq_factor "
            "high_freq_factor original_max_position_embeddings",
        ),
        (torchtitan_api.CosSinRoPE.Config, "dim max_seq_len theta"),
        (
            torchtitan_api.ParallelismConfig,
            "data_parallel_replicate_degree data_parallel_shard_degree "
            "tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_schedule "
            "context_parallel_degree context_parallel_load_balancer expert_parallel_degree "
            "spmd_backend",
        ),
        (torchtitan_api.TrainingConfig, "dtype mixed_precision_param enable_cpu_offload"),
        (torchtitan_api.CompileConfig, "enable components"),
    ],
)
def test_fields(config: Any, names: str) -> None:
    assert set(names.split()) <= {field.name for field in dataclasses.fields(config)}


@pytest.mark.parametrize("module", [torchtitan_api.llama3, torchtitan_api.qwen3])
def test_a_spec_brings_what_is_called(module: Any) -> None:
    spec = module.model_registry("debugmodel")
    wanted = "parallel_dims training parallelism compile_config ac_config dump_folder"
    assert set(wanted.split()) <= inspect.signature(spec.parallelize_fn).parameters.keys()
    adapter = spec.state_dict_adapter(spec.model, None)
    assert callable(adapter.to_hf)
    assert callable(adapter.from_hf)
    assert hasattr(spec.model, "max_seq_len")


@pytest.mark.skipif(torch.cuda.is_available(), reason="TorchTitan finds the accelerator by itself")
def test_without_an_accelerator_titan_runs_on_the_cpu() -> None:
    import torchtitan.distributed.parallel_dims
    import torchtitan.tools.utils

    assert torchtitan.tools.utils.device_type == "cpu"
    assert torchtitan.distributed.parallel_dims.device_type == "cpu"


def test_its_lines_go_to_a_logger_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    import torchtitan.distributed.parallel_dims

    logger = torchtitan.distributed.parallel_dims.logger
    assert logger is LOGGER
    assert logger is not logging.getLogger()
