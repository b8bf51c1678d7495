"""A clip range as narrow as the rounding between sampler and trainer is warned of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, RewardComponent, RewardSample, Settings, hookimpl
from forge_testing.runs import small_config


class Parity:
    """Pays every other length, so that groups have a signal from the first step on."""

    def __call__(self, sample: RewardSample) -> float:
        return float(len(sample.completion) % 2)


class WithParity:
    @hookimpl
    def forge_rewards(self) -> Iterable[RewardComponent]:
        yield RewardComponent(
            name="parity",
            settings=Settings,
            build=lambda settings, context: Parity(),
            summary="odd lengths",
        )


@pytest.mark.parametrize(
    ("loss", "precision", "warned"),
    [
        ({"use": "gspo"}, "bf16", True),
        ({"use": "gspo"}, "fp32", False),
        ({"use": "gspo", "clip_low": 0.01, "clip_high": 0.013}, "bf16", False),  # as documented
        ({"use": "grpo"}, "bf16", False),
    ],
    ids=str,
)
def test_rounding_of_the_order_of_the_clip(
    tmp_path: Path, loss: dict[str, Any], precision: str, warned: bool
) -> None:
    summary = Forge(plugins=[WithParity()]).run(
        small_config(rewards={"parity": {}}, sampling={"max_tokens": 20}, loss=loss),
        {
            "distributed.precision": precision,
            "training.learning_rate": 1e-6,
            "training.steps": 2,
            "checkpointing.output_dir": str(tmp_path),
        },
    )
    events = [json.loads(line) for line in (summary.folder / "events.jsonl").open()]
    told = [event["message"] for event in events if "clips" in event["message"]]
    assert len(told) == warned, summary.metrics  # once, however many steps
    assert (summary.metrics["clip_fraction"] > 0.1) == warned
    for message in told:
        assert message.startswith("loss 'gspo' clips ")
        assert "mismatch/logprob_abs_mean 0.0" in message
