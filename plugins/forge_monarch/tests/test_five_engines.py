"""All five engines in one run: vLLM generates, TorchTitan trains, TorchStore carries the weights,
Monarch has the processes, torch.distributed joins the ranks. They learn, and leave nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_testing.leftovers import Leftovers
from forge_testing.runs import PATIENCE, Run, lines_of, scores_of, small_config

ENGINES = ("--runtime=monarch", "--transport=torchstore", "--generator=vllm", "--trainer=titan")

HEAD = {"head_dim": 32}
"""vLLM's attention on CPU has no smaller one."""

pytestmark = pytest.mark.slow


@pytest.fixture
def leftovers(tmp_path: Path) -> Leftovers:
    return Leftovers(tmp_path)


@pytest.fixture
def five(runs: Callable[..., Run]) -> Callable[..., Run]:
    """``five(*arguments, **sections)``: a small run of them, begun."""

    def start(*arguments: str, **sections: Any) -> Run:
        return runs(small_config(HEAD, **sections), *ENGINES, *arguments)

    return start


def test_they_learn_as_the_quickstart_does(
    run_forge_process: Any, tmp_path: Path, leftovers: Leftovers
) -> None:
    """The quickstart's two stages, the second cut short."""
    short = ("stages.grpo.training.steps=150", "evaluation.interval=null")
    result = run_forge_process("run", "quickstart", *ENGINES, *short, timeout=3 * PATIENCE)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    scores = scores_of(run)
    assert scores["sft", "before"] < 0.1
    assert 0.3 < scores["sft", "after"] <= 0.65
    assert scores["grpo", "before"] == scores["sft", "after"]
    assert scores["grpo", "after"] >= scores["sft", "after"] + 0.15
    steps = [row for row in lines_of(run / "metrics.jsonl") if row["stage"] == "grpo"]
    assert len(steps) == 150
    assert_sampled_by_the_weights_they_name(steps)
    assert_nothing_went_wrong(lines_of(run / "events.jsonl"))
    assert leftovers.found() == []


def test_two_replicas_and_two_ranks_that_share_the_model(
    five: Callable[..., Run], leftovers: Leftovers
) -> None:
    """FSDP over two ranks, each putting its shards; two engines, each reading whole tensors."""
    run = five(
        "generator.replicas=2",
        "trainer.procs=2",
        "distributed.data_parallel_shard_degree=2",
        "training.steps=12",
        "training.batch_size=128",
        "sampling.max_tokens=1",  # a digit: often enough the right one
    )
    run.until_step(1)
    for rank in ("generator-0-rank0", "generator-1-rank0", "trainer-0-rank0", "trainer-0-rank1"):
        assert run.ranks(rank), f"{rank} is a process of its own"
    assert leftovers.note_ports(), "the ranks of the trainer met at one"
    assert run.end() == 0, run.printed
    rows = run.lines("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert_sampled_by_the_weights_they_name(rows)
    # What a step trained is a version of its own, and what the next one samples from.
    published = [row["trained_tokens"] > 0 for row in rows]
    assert sum(published) >= 6
    for episode in run.lines("episodes.jsonl"):
        version = sum(published[: episode["step"] - 1])
        assert set(episode["versions"]) == {-1, version}, "a prompt's tokens have none"
    assert_nothing_went_wrong(run.lines("events.jsonl"))
    assert leftovers.found() == []


@pytest.mark.parametrize(
    "ending", ["SIGTERM", "ctrl-C twice", "trainer killed", "controller killed"]
)
def test_whatever_ends_them_nothing_is_left(
    ending: str, five: Callable[..., Run], leftovers: Leftovers
) -> None:
    # Steps long enough for a second ctrl-C to come within the one that the first waits for.
    run = five("training.steps=100000", "training.batch_size=1024")
    run.until_step(1)
    leftovers.note_ports()
    if ending == "SIGTERM":
        run.process.terminate()
        assert run.end() == 130, run.printed
        assert run.kinds()["checkpoint"] == 1
        assert_nothing_went_wrong(run.lines("events.jsonl"))
    elif ending == "ctrl-C twice":
        os.killpg(run.process.pid, signal.SIGINT)
        run.until(lambda: run.kinds()["stopping"])
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.end() == 130, run.printed
    elif ending == "trainer killed":
        (rank,) = run.ranks("trainer")
        os.kill(rank, signal.SIGKILL)
        assert run.end() == 1
        (error,) = (line for line in run.printed.splitlines() if line.startswith("error:"))
        assert "replica 0 of trainer" in error
        assert "was killed by SIGKILL" in error
    else:
        run.process.kill()
        run.process.wait()
    assert leftovers.found() == []


def test_ctrl_c_twice_while_they_start_leaves_nothing(
    five: Callable[..., Run], leftovers: Leftovers
) -> None:
    run = five()
    run.until(lambda: run.ranks("trainer"))
    os.killpg(run.process.pid, signal.SIGINT)
    run.until(lambda: run.kinds()["stopping"])
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == 130, run.printed
    assert leftovers.found() == []


def assert_sampled_by_the_weights_they_name(rows: list[dict[str, Any]]) -> None:
    """vLLM and TorchTitan compute the same logprob for every token of every step."""
    assert all(row["staleness/max"] == 0 for row in rows)
    assert all(0 <= row["mismatch/logprob_abs_max"] < 1e-3 for row in rows)


def assert_nothing_went_wrong(events: list[dict[str, Any]]) -> None:
    kinds = {event["kind"] for event in events}
    assert not kinds & {"replica_died", "close_failed", "service_failed"}
