"""The trainer ``titan`` in one process: the conformance suite, and what only it does."""

from __future__ import annotations

import pytest

from forge_core import Selection
from forge_core.protocols import Trainer
from forge_core.testing.conformance.trainer import TrainerConformance
from forge_titan.settings import TRAINER, TitanTrainerSettings


def _selection(**settings: object) -> Selection[Trainer]:
    parsed = TitanTrainerSettings.model_validate({"device": "cpu", **settings})
    return Selection(family="trainer", component=TRAINER, settings=parsed)


class TestTitan(TrainerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        return _selection()
