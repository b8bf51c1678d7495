"""Faults in runs of the engines: each comes back or is resumed, and the invariants hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_chaos.invariants import violations
from forge_testing.leftovers import Leftovers
from forge_testing.runs import Run, small_config

pytestmark = pytest.mark.slow

HEAD = small_config({"head_dim": 32})["model"]
"""vLLM's attention on CPU has no smaller one."""


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def ended_well(run: Run, resumes: int = 0) -> None:
    """The run reaches its target after so many resumes, and every invariant holds."""
    for _ in range(resumes):
        assert run.end() == 1, run.printed
        run.resume()
    assert run.end() == 0, run.printed
    assert violations(run.folder) == []


@pytest.fixture
def leftovers(tmp_path: Path) -> Leftovers:
    return Leftovers(tmp_path)


def test_vllm_is_killed(disturbed: Callable[..., Run], leftovers: Leftovers) -> None:
    needs("vllm")
    faults = {"seed": 4, "kill": {"generator": 1}, "delay": {"generator": 1}}
    generator = {"use": "vllm", "isolate": True}
    run = disturbed(faults, "training.steps=4", model=HEAD, generator=generator, trainer={})
    ended_well(run)
    assert run.kinds()["replica_restarted"] == 1
    assert leftovers.found() == []


def test_titan_is_killed_and_resumed(disturbed: Callable[..., Run], leftovers: Leftovers) -> None:
    needs("torchtitan")
    trainer: dict[str, Any] = {"use": "titan", "procs": 2}
    faults = {"seed": 4, "kill": {"trainer": 1}, "delay": {"trainer": 1}}
    run = disturbed(faults, "training.steps=4", trainer=trainer, generator={"isolate": True})
    ended_well(run, resumes=1)
    assert leftovers.found() == []


def test_monarch_loses_a_replica(disturbed: Callable[..., Run], leftovers: Leftovers) -> None:
    needs("monarch")
    faults = {"seed": 5, "kill": {"generator": 2}, "delay": {"trainer": 1}}
    generator = {"replicas": 2}
    run = disturbed(faults, "training.steps=6", runtime={"use": "monarch"}, generator=generator)
    ended_well(run)
    assert leftovers.found() == []


def test_torchstore_loses_its_reader(disturbed: Callable[..., Run], leftovers: Leftovers) -> None:
    needs("monarch", "torchstore")
    faults = {"seed": 6, "kill": {"generator": 1}, "delay": {"generator": 1, "controller": 1}}
    run = disturbed(
        faults,
        "training.steps=6",
        runtime={"use": "monarch"},
        transport={"use": "torchstore"},
    )
    ended_well(run)
    assert run.kinds()["replica_restarted"] == 1
    assert leftovers.found() == []


def test_all_engines_are_killed_and_resumed_to_the_same_numbers(
    disturbed: Callable[..., Run], leftovers: Leftovers
) -> None:
    """Monarch, vLLM, two ranks of titan, and TorchStore between them."""
    needs("monarch", "torchstore", "torchtitan", "vllm")
    engines: dict[str, Any] = {
        "model": HEAD,
        "runtime": {"use": "monarch"},
        "transport": {"use": "torchstore"},
        "generator": {"use": "vllm"},
        "trainer": {"use": "titan", "procs": 2},
    }
    # One token each: often enough a digit, so that there is a signal from the first step on.
    lengths = ("training.steps=5", "training.batch_size=128", "sampling.max_tokens=1")
    undisturbed = disturbed(None, *lengths, name="undisturbed", **engines)
    assert undisturbed.end() == 0, undisturbed.printed
    trained = [line["trained_tokens"] for line in undisturbed.lines("metrics.jsonl")]
    assert any(trained)
    run = disturbed({"seed": 1, "kill": {"controller": 1, "trainer": 1}}, *lengths, **engines)
    deaths = 0
    while run.end() != 0 and deaths < 2:  # both may be of one step
        deaths += 1
        run.resume()
    assert deaths > 0
    assert violations(run.folder, undisturbed.folder, tolerance=1e-4) == []
    assert leftovers.found() == []
