"""A head of one number on the policy's hidden states, for losses that need ``values``."""

from __future__ import annotations

import torch

from forge_tensors.logprobs import Scores


class ValueHead(torch.nn.Linear):
    """V(state) where each token is predicted: the state is what stands before it.

    It is kept and computed in float32, whatever the policy's type, and begins with zeros: it
    expects nothing, and sends nothing into the policy before it has learned something itself.

    Args:
        hidden: width of the hidden states.
        device: that of the policy.
    """

    def __init__(self, hidden: int, device: torch.device | str) -> None:
        super().__init__(hidden, 1, device=device, dtype=torch.float32)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def scored(self, scores: Scores) -> Scores:
        """The same scores with values, from their hidden states. [N] float32"""
        hidden = scores.hidden_states
        assert hidden is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return scores._replace(values=self(hidden.float()).squeeze(-1))
