"""What an engine's methods return is checked where it arrives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    Completion,
    Component,
    DistributedSection,
    ModelSection,
    RunFailed,
    Sampling,
    Selection,
    Settings,
    StepResult,
    TrainingSection,
    TrainSequence,
    WeightManifest,
)
from forge_local.runtime import LocalRuntime
from forge_services.service import Service

COMPLETION = Completion((1, 2), (-0.5, -0.25), (0, 0), "stop")
SEQUENCE = TrainSequence(tokens=(1, 2, 3), loss_mask=(False, True, True))
STEP = StepResult(0.1, 1.0, 1e-3, 3, 2)
MANIFEST = WeightManifest(1, "00", 1, 8)


class NoSettings(Settings):
    pass


class Engine:
    """Every method returns the same."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def generate(self, prompt: Any, sampling: Any) -> Any:
        return self._answer

    async def train_step(self, micro_batches: Any) -> Any:
        return self._answer

    async def logprobs(self, sequences: Any) -> Any:
        return self._answer

    async def publish(self, version: int) -> Any:
        return self._answer


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "generate": ([1], Sampling(n=2)),
    "train_step": ([[SEQUENCE]],),
    "logprobs": ([SEQUENCE],),
    "publish": (1,),
}


def call(method: str, answer: Any) -> Any:
    """Call a method of an engine that returns ``answer``."""
    family = "generator" if method == "generate" else "trainer"
    component = Component(
        name="acme", settings=NoSettings, build=lambda *_: Engine(answer), summary=""
    )
    selection = Selection(family=family, component=component, settings=NoSettings())
    context = BuildContext(
        model=ModelSection(), training=TrainingSection(), distributed=DistributedSection()
    )

    async def routed() -> Any:
        service = await Service.start(LocalRuntime(), selection, context, name=family)
        try:
            return await getattr(service, method).route(*ARGUMENTS[method])
        finally:
            await service.close()

    return asyncio.run(routed())


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("generate", None, "None, not a list of Completion"),
        ("generate", "text", "a str, not a list of Completion"),
        ("generate", [COMPLETION, None], "a list with None in it, not of Completion"),
        ("generate", [COMPLETION], "1 completions where 2 were asked for"),
        ("train_step", None, "None, not a StepResult"),
        ("train_step", 0.5, "a float, not a StepResult"),
        ("publish", None, "None, not a WeightManifest"),
        ("logprobs", None, "None, not a list with one list for each sequence"),
        ("logprobs", "text", "a str, not a list with one list for each sequence"),
        ("logprobs", [], "the logprobs of 0 sequences where 1 were asked for"),
        ("logprobs", [None], "None for sequence 0, not a list of logprobs"),
        ("logprobs", [[0.0]], "1 logprobs for sequence 0, which has 3 tokens"),
    ],
)
def test_a_wrong_answer_names_component_and_method(method: str, answer: Any, told: str) -> None:
    family = "generator" if method == "generate" else "trainer"
    with pytest.raises(RunFailed) as caught:
        call(method, answer)
    assert str(caught.value) == f"{family} 'acme': {method}() returned {told}"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("generate", [COMPLETION, COMPLETION]),
        ("train_step", STEP),
        ("publish", MANIFEST),
        ("logprobs", [[0.0, -0.5, -0.25]]),
    ],
)
def test_a_right_answer_passes(method: str, answer: Any) -> None:
    assert call(method, answer) is answer
