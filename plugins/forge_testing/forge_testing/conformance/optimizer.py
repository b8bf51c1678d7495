"""What every optimizer does.

Inherit it, and say which optimizer with the ``selection`` fixture.

.. code-block:: python

    class TestMine(OptimizerConformance):
        @pytest.fixture
        def selection(self):
            (component,) = forge_optimizers()
            settings = component.settings()
            return Selection(family="optimizer", component=component, settings=settings)
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from forge_core import OptimizerFactory, Selection
from forge_tensors.optimizer import make_optimizer
from forge_testing.conformance.suite import Suite
from forge_testing.context import bare_context

RATE = 0.01

Weights = dict[str, torch.Tensor]


class OptimizerConformance(Suite):
    """Inherit with a ``selection`` fixture."""

    @pytest.fixture
    def selection(self) -> Selection[OptimizerFactory]:
        """The optimizer under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    def test_one_step_changes_every_weight(self, selection: Selection[OptimizerFactory]) -> None:
        weights = some_weights()
        optimizer = made(selection, weights)
        before = copied(weights)
        train(optimizer, weights, range(1))
        for name, weight in weights.items():
            assert weight.isfinite().all(), name
            assert not torch.equal(weight, before[name]), f"{name} is as it was"

    def test_a_step_goes_down(self, selection: Selection[OptimizerFactory]) -> None:
        """Weights that are pulled towards 0 come nearer to it."""
        weights = some_weights()
        optimizer = made(selection, weights)
        before = sum(float(weight.detach().square().sum()) for weight in weights.values())
        for _ in range(20):
            for weight in weights.values():
                weight.grad = weight.detach().clone()
            optimizer.step()
        after = sum(float(weight.detach().square().sum()) for weight in weights.values())
        assert after < before

    def test_the_learning_rate_is_the_trainers(
        self, selection: Selection[OptimizerFactory]
    ) -> None:
        """It is set in ``param_groups`` before each step; at 0 no weight changes."""
        weights = some_weights()
        optimizer = made(selection, weights)
        train(optimizer, weights, range(2))
        before = copied(weights)
        train(optimizer, weights, range(2, 3), rate=0.0)
        for name, weight in weights.items():
            assert torch.equal(weight, before[name]), f"{name} changed at learning rate 0"

    def test_its_settings_are_in_its_groups(self, selection: Selection[OptimizerFactory]) -> None:
        """Under their names, so that a resumed run can be given others."""
        optimizer = made(selection, some_weights())
        for group in optimizer.param_groups:
            for name, value in selection.settings:
                assert name in group, f"param_groups has no {name}"
                if name != "weight_decay" or group["weight_decay"] != 0.0:
                    assert group[name] == value, name
        assert optimizer.param_groups[-1]["weight_decay"] == 0.0, "of vectors"

    def test_saved_and_restored_it_goes_on_exactly(
        self, selection: Selection[OptimizerFactory]
    ) -> None:
        """As trainers save it: read again without unpickling anything but tensors and numbers."""
        weights = some_weights()
        optimizer = made(selection, weights)
        train(optimizer, weights, range(3))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        again = {name: weight.detach().clone() for name, weight in weights.items()}
        for weight in again.values():
            weight.requires_grad_()
        restored = made(selection, again)
        restored.load_state_dict(torch.load(file, weights_only=True))
        for each, held in ((optimizer, weights), (restored, again)):
            train(each, held, range(3, 6))
        for name, weight in weights.items():
            assert torch.equal(weight, again[name]), f"{name} differs after a resume"

    def test_the_same_gradients_give_the_same_weights(
        self, selection: Selection[OptimizerFactory]
    ) -> None:
        ends = []
        for _ in range(2):
            weights = some_weights()
            train(made(selection, weights), weights, range(3))
            ends.append(weights)
        for name, weight in ends[0].items():
            assert torch.equal(weight, ends[1][name])

    def test_a_step_without_gradients_changes_nothing(
        self, selection: Selection[OptimizerFactory]
    ) -> None:
        weights = some_weights()
        optimizer = made(selection, weights)
        train(optimizer, weights, range(1))
        before = copied(weights)
        optimizer.zero_grad()
        optimizer.step()
        for name, weight in weights.items():
            assert torch.equal(weight, before[name])

    def test_it_keeps_what_it_says(self, selection: Selection[OptimizerFactory]) -> None:
        """``state_values`` of its component, which ``forge plan`` counts with."""
        if selection.state_values is None:
            pytest.skip("it does not say how much it keeps")
        weights = some_weights()
        optimizer = made(selection, weights)
        train(optimizer, weights, range(2))
        kept = sum(tensor.numel() for tensor in _tensors(optimizer.state.values()))
        count = sum(weight.numel() for weight in weights.values())
        assert kept / count == pytest.approx(selection.state_values, abs=0.06)

    def test_shards_of_a_weight_are_changed_like_the_whole(
        self, selection: Selection[OptimizerFactory]
    ) -> None:
        if not selection.sharded:
            pytest.skip("it does not say that it takes shards (OptimizerComponent.sharded)")
        whole = some_weights()
        parts: Weights = {}
        for name, weight in whole.items():
            for index, part in enumerate(weight.detach().chunk(2)):
                parts[f"{name}/{index}"] = part.clone().requires_grad_()
        first, second = made(selection, whole), made(selection, parts)
        for step in range(3):
            for name, gradient in gradients(whole, step).items():
                whole[name].grad = gradient
                for index, part in enumerate(gradient.chunk(2)):
                    parts[f"{name}/{index}"].grad = part.clone()
            first.step()
            second.step()
        for name, weight in whole.items():
            joined = torch.cat([parts[f"{name}/0"], parts[f"{name}/1"]])
            torch.testing.assert_close(joined, weight, rtol=1e-6, atol=1e-7)

    def test_it_travels_to_other_processes(self, selection: Selection[OptimizerFactory]) -> None:
        arrived = pickle.loads(pickle.dumps(selection))
        weights = some_weights()
        train(made(arrived, weights), weights, range(1))


def some_weights() -> Weights:
    """Two matrices and two vectors, the same on each call."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"first": (48, 64), "second": (64, 48), "norm": (64,), "bias": (48,)}
    return {
        name: torch.randn(shape, generator=generator).requires_grad_()
        for name, shape in shapes.items()
    }


def gradients(weights: Weights, step: int) -> Weights:
    """A gradient for each weight, by step; no value is 0."""
    generator = torch.Generator().manual_seed(1 + step)
    return {
        name: torch.randn(weight.shape, generator=generator) + 0.01
        for name, weight in weights.items()
    }


def made(selection: Selection[Any], weights: Weights) -> torch.optim.Optimizer:
    """The optimizer as trainers make it."""
    context = bare_context(optimizer=copy.copy(selection))
    return make_optimizer(context, weights.items(), rate=RATE)


def train(
    optimizer: torch.optim.Optimizer, weights: Weights, steps: Iterable[int], rate: float = RATE
) -> None:
    """Steps with the gradients of their numbers."""
    for step in steps:
        for name, gradient in gradients(weights, step).items():
            weights[name].grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def copied(weights: Weights) -> Weights:
    return {name: weight.detach().clone() for name, weight in weights.items()}


def _tensors(states: Iterable[Any]) -> list[torch.Tensor]:
    """Everything that is kept of weights, however deep; step counts are left out."""
    found: list[torch.Tensor] = []
    for state in states:
        if isinstance(state, dict):
            found += _tensors(state.values())
        elif isinstance(state, torch.Tensor) and state.dim():
            found.append(state)
    return found
