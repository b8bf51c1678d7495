"""Runs of the real TorchTitan on two ranks, in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_core import BuildContext, Forge, ForgeError, LossComponent, Settings, hookimpl
from forge_sft.plugin import forge_losses
from forge_testing.command import run_as_process
from forge_testing.runs import lines_of, small_config

SMALL = {
    "FORGE_STAGES__SFT__TRAINING__STEPS": "2",
    "FORGE_STAGES__SFT__TRAINING__BATCH_SIZE": "16",
    "FORGE_STAGES__GRPO__TRAINING__STEPS": "2",
    "FORGE_STAGES__GRPO__TRAINING__BATCH_SIZE": "16",
    "FORGE_EVAL_DATASET__SIZE": "10",
}
"""The quickstart in seconds in place of minutes."""


class Mishaps:
    """Cross-entropy that goes wrong on rank 1: in the second step, or before the first."""

    @hookimpl
    def forge_losses(self) -> Iterable[LossComponent]:
        for name, build in (
            ("raises", build_raising),
            ("dies", build_dying),
            ("dies_early", build_dead),
        ):
            yield LossComponent(name=name, settings=Settings, build=build, summary=name)


class Mishap:
    def __init__(self, loss: Any, rank: int, happen: Any) -> None:
        self._loss, self._rank, self._happen = loss, rank, happen
        self._calls = 0

    def __call__(self, logprobs: Any, batch: Any, outputs: Any) -> Any:
        self._calls += 1
        if self._calls == 2 and self._rank == 1:
            self._happen()
        return self._loss(logprobs, batch, outputs)


def build_raising(settings: Settings, context: BuildContext) -> Any:
    return Mishap(cross_entropy(context), context.rank, raise_something)


def build_dying(settings: Settings, context: BuildContext) -> Any:
    return Mishap(cross_entropy(context), context.rank, die)


def build_dead(settings: Settings, context: BuildContext) -> Any:
    if context.world_size > 1 and context.rank == 1:
        die()
    return cross_entropy(context)


def raise_something() -> None:
    raise ArithmeticError("rank one will not have it")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cross_entropy(context: BuildContext) -> Any:
    (component,) = forge_losses()
    return component.build(component.settings(), replace(context, loss=None))


def test_the_quickstart_on_two_ranks(tmp_path: Path) -> None:
    """SFT and GRPO, weights to the sampler in another process, checkpoints, held-out scores."""
    result = run_as_process(
        *("run", "quickstart", "--trainer", "titan", "--nproc-per-node", "2"),
        cwd=tmp_path,
        environ=SMALL,
        timeout=300,
    )
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    rows = lines_of(run / "metrics.jsonl")
    assert [row["stage"] for row in rows] == ["sft", "sft", "grpo", "grpo"]
    # The sampler holds the very weights that the ranks train.
    assert rows[-1]["mismatch/logprob_abs_max"] < 1e-4
    assert {path.name for path in (run / "logs").iterdir()} >= {
        "trainer-0-rank0.log",
        "trainer-0-rank1.log",
    }
    state = run / "checkpoints" / "step_4" / "trainer_state"
    assert len(list(state.glob("*.distcp"))) == 2


def test_sequences_are_split_where_torch_cannot_compile(tmp_path: Path) -> None:
    """Context parallelism compiles a function of its own."""
    result = run_as_process(
        *("run", "quickstart", "--trainer", "titan", "--nproc-per-node", "2", "~stages.grpo"),
        "distributed.context_parallel_degree=2",
        cwd=tmp_path,
        environ={**SMALL, "ATEN_CPU_CAPABILITY": "default"},
        timeout=300,
    )
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("mishap", "told"),
    [
        ("raises", ["ArithmeticError: rank one will not have it", "rank 1"]),
        ("dies", ["rank 1", "SIGKILL"]),
        ("dies_early", ["rank 1", "SIGKILL"]),
    ],
)
def test_one_ranks_failure_ends_the_run_with_its_own_cause(
    tmp_path: Path, mishap: str, told: list[str]
) -> None:
    config = small_config(
        {"num_key_value_heads": 2},
        recipe={"use": "sft"},
        training={"steps": 3, "batch_size": 8},
        trainer={"use": "titan", "procs": 2},
        loss={"use": mishap},
        checkpointing={"output_dir": str(tmp_path)},
        trackers={"console": None},
    )
    with pytest.raises(ForgeError) as raised:
        Forge(plugins=[Mishaps()]).run(config)
    ended = time.time()
    assert raised.value.exit_code == 1
    (run,) = tmp_path.iterdir()
    text = str(raised.value) + (run / "error.txt").read_text()
    for words in told:
        assert words in text
    # No rank waited for a collective to time out (that takes minutes).
    steps = (run / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == (0 if mishap == "dies_early" else 1)
    if steps:
        assert ended - (run / "metrics.jsonl").stat().st_mtime < 60
