"""The critic: the policy's transformer with a head of one number, and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from acme_ppo.settings import CriticSettings
from forge_core import BuildContext, FloatArray, TrainSequence
from forge_models.folder import load_model

STATE_FILE = "critic.pt"


class Critic:
    """V(state) for each token: the state is what comes before it."""

    def __init__(self, settings: CriticSettings, context: BuildContext) -> None:
        assert context.model.path is not None  # every stage begins with a folder
        model = load_model(
            context.model.path,
            device="cuda" if torch.cuda.is_available() else "cpu",
            trust_remote_code=context.model.trust_remote_code,
            allow_pickle=context.model.allow_pickle,
        )
        self.body = model.base_model
        self.head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)  # it begins by expecting nothing
        torch.nn.init.zeros_(self.head.bias)
        self.net = torch.nn.ModuleList([self.body, self.head.to(model.device)])
        self.optimizer = torch.optim.AdamW(self.net.parameters(), settings.learning_rate)

    async def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """One array for each sequence, 0 where a token is not trained. [T]"""
        with torch.no_grad():
            values = self._values(sequences).cpu()
        return [
            (row[: len(each.tokens)] * torch.from_numpy(each.loss_mask.copy())).numpy()
            for row, each in zip(values, sequences, strict=True)
        ]

    async def train_step(self, sequences: Sequence[TrainSequence]) -> float:
        """One optimizer step on the squared error to ``returns``; says its mean."""
        if not any(each.loss_mask.any() for each in sequences):
            return 0.0
        errors = self._values(sequences) - self._padded([s.fields["returns"] for s in sequences])
        loss = errors[self._padded([each.loss_mask for each in sequences])].square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _values(self, sequences: Sequence[TrainSequence]) -> torch.Tensor:
        """[S, longest T]"""
        # Padding is on the right, where a causal model never looks back to.
        tokens = self._padded([each.tokens for each in sequences]).long()
        hidden = self.body(input_ids=tokens, use_cache=False).last_hidden_state
        values = self.head(hidden.float()).squeeze(-1)
        return torch.nn.functional.pad(values[:, :-1], (1, 0))

    def _padded(self, rows: Sequence[Any]) -> torch.Tensor:
        tensors = [torch.tensor(row, device=self.head.weight.device) for row in rows]
        return pad_sequence(tensors, batch_first=True)

    async def save(self, folder: Path) -> None:
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / STATE_FILE)

    async def load(self, folder: Path) -> None:
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        self.net.load_state_dict(state["net"])
        # Its moments; the learning rate is the config's, which a resume may change.
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = rate

    async def close(self) -> None:
        pass
