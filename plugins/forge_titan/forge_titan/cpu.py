"""What TorchTitan 0.3.0 needs to run without an accelerator, and with torch 2.13.

TorchTitan takes ``cuda`` where it finds no device, and is written against torch 2.14. Each
adaptation here is made only where it is needed.
"""

from __future__ import annotations

import logging
import sys

import torch

LOGGER = logging.getLogger("torchtitan")
"""Where TorchTitan's lines go: it writes to the root logger by itself, on everybody's console."""


def prepare() -> None:
    """Point TorchTitan at the CPU where there is nothing else, and its log at a logger of its own.

    Modules of TorchTitan bind both names when they are imported, so those that were imported
    before are put right as well. Called before and after the imports of ``titan.py``.
    """
    import torchtitan.tools.logging
    import torchtitan.tools.utils  # noqa: F401

    if not LOGGER.handlers:
        LOGGER.addHandler(logging.NullHandler())
    for name, module in list(sys.modules.items()):
        if not name.startswith("torchtitan.") or module is None:
            continue
        names = vars(module)
        if names.get("logger") is logging.getLogger():
            names["logger"] = LOGGER
        if names.get("device_type") == "cuda" and not torch.cuda.is_available():
            names["device_type"] = "cpu"
            names["device_module"] = torch.cpu


def sum_gradients(model: torch.nn.Module) -> None:
    """Have FSDP add gradients up with a plain sum.

    TorchTitan sets a gradient divisor of 1, which FSDP2 turns into ``ReduceOp.PREMUL_SUM``, and
    gloo has no such operation. The numbers are the same.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
