"""The language-model head that gives logprobs of chosen tokens instead of everybody's logits.

It is a module of the model, so that FSDP gathers and frees its weight around the call as for any
other, and computes in chunks (``forge_tensors.logprobs``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from forge_core import OutputNeeds
from forge_tensors.logprobs import LogitShape, Scores, Terms, chunk_bytes_on, token_logprobs
from forge_titan.sharded_logprobs import sharded_token_logprobs
from forge_titan.torchtitan_api import Linear


class LogprobHead(Linear):  # type: ignore[misc]
    """``lm_head`` of TorchTitan's models; called apart from the rest of the model."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        """That of a linear layer."""

    weight: Any

    def forward(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        needs: OutputNeeds,
        terms: Terms | None,
    ) -> Scores:
        """Logprobs of N tokens, and what else is asked for.

        Args:
            hidden: output of the final norm where each token is predicted. [N, H]
            targets: the tokens. [N] int64
            temperature: logits are divided by it.
            needs: what else to give; where the vocabulary lies over ranks, ``entropy`` and
                ``hidden_states`` only.
            terms: what to make of the log-probabilities of the vocabulary, where it is whole; None:
                nothing.

        Returns:
            float32; hidden states as they are.
        """
        weight = self.weight
        if isinstance(weight, DTensor):  # its vocabulary lies over the ranks of tensor parallelism
            mesh = weight.device_mesh
            rows = -(-weight.shape[0] // mesh.size())
            logprobs, entropy = sharded_token_logprobs(
                hidden,
                weight.to_local(),
                targets,
                first=rows * mesh.get_local_rank(),
                group=mesh.get_group(),
                chunk=max(1, chunk_bytes_on(hidden.device) // (4 * rows)),
                temperature=temperature,
                with_entropy=needs.entropy,
            )
            return Scores(logprobs, entropy, hidden_states=hidden if needs.hidden_states else None)
        return token_logprobs(
            hidden,
            weight,
            targets,
            shape=LogitShape(temperature=temperature),
            needs=needs,
            terms=terms,
        )
