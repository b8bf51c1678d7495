"""Everything this plugin uses of TorchTitan, in one place; ``tests/test_titan_surface.py`` pins it.

TorchTitan promises no stable interface between releases. No other module imports it.
"""

from __future__ import annotations

from forge_titan import cpu

cpu.prepare()

# ruff: noqa: E402
from torchtitan.components.checkpointer.utils import canonical_fqn
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
)
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.compile import apply_compile
from torchtitan.distributed.context_parallel import prepare_context_parallel_input
from torchtitan.distributed.utils import clip_grad_norm_, set_spmd_backend
from torchtitan.models import llama3, qwen3
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.utils import set_default_dtype

cpu.prepare()

__all__ = [
    "CompileConfig",
    "ComplexRoPE",
    "CosSinRoPE",
    "Embedding",
    "FlexAttention",
    "FullAC",
    "LRSchedulersContainer",
    "Linear",
    "Llama3Model",
    "Llama3TransformerBlock",
    "ModelSpec",
    "OptimizersContainer",
    "ParallelDims",
    "ParallelismConfig",
    "Qwen3Model",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "SelectiveAC",
    "TrainingConfig",
    "apply_compile",
    "canonical_fqn",
    "clip_grad_norm_",
    "llama3",
    "make_ffn_config",
    "make_gqa_config",
    "prepare_context_parallel_input",
    "qwen3",
    "set_default_dtype",
    "set_spmd_backend",
    "skip_param_init",
]
