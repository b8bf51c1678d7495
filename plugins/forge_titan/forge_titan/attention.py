"""Attention of packed sequences in TorchTitan's models, on every device.

TorchTitan's FlexAttention has no backward pass on CPU, is recompiled for each length of a batch,
and its variable-length attention computes in bfloat16 only. Forge's packed attention
(``forge_tensors.attention``) takes its place: it never looks across sequences, and needs no
mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_mask

from forge_tensors.attention import Layout, packed_attention
from forge_titan.torchtitan_api import FlexAttention


class PackedAttention(FlexAttention):  # type: ignore[misc]
    """FlexAttention's place and layout, with a ``Layout`` where that takes a ``BlockMask``.

    Context parallelism splits sequences over ranks and knows only block masks; given one, the same
    mask is applied densely.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):  # type: ignore[misc]
        """Nothing to set."""

    def forward(
        self,
        q_BLNH: torch.Tensor,  # noqa: N803
        k_BLNH: torch.Tensor,  # noqa: N803
        v_BLNH: torch.Tensor,  # noqa: N803
        *,
        attention_masks: Layout | BlockMask,
        scale: float | None = None,
        **asked: Any,
    ) -> torch.Tensor:
        """[1, T, heads, D] each; the same comes out."""
        q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
        if isinstance(attention_masks, BlockMask):
            return _dense(q, k, v, attention_masks, scale).transpose(1, 2)
        output, _ = packed_attention(
            self, q, k, v, None, packed_layout=attention_masks, scaling=scale
        )
        return output


def _dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask, scale: float | None
) -> torch.Tensor:
    batch, _, queries, keys = mask.shape
    allowed = create_mask(mask.mask_mod, batch, 1, queries, keys, device=q.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
