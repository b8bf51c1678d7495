"""``opt_out``: the one way to leave a test of a conformance suite out, the same in every suite."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import forge_testing.conformance as suites
from forge_testing.conformance.loss import LossConformance

pytest_plugins = ["pytester"]

SUITES = [
    value
    for module in pkgutil.iter_modules(suites.__path__, f"{suites.__name__}.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if isinstance(value, type) and name.endswith("Conformance") and value.__module__ == module.name
]


def one_test(suite: type) -> str:
    return next(name for name in dir(suite) if name.startswith("test_"))


def test_every_suite_is_looked_at() -> None:
    families = {suite.__name__.removesuffix("Conformance") for suite in SUITES}
    processes = "Generator ProcessRuntime Reward Runtime Trainer Transport"
    others = "Advantage Dataset Environment Loss Optimizer Recipe Schedule Tracker"
    assert families == {*processes.split(), *others.split()}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
def test_a_name_that_is_no_test_is_an_error(suite: type) -> None:
    name = one_test(suite)
    with pytest.raises(TypeError, match=f"Mine.opt_out: no test is called '{name}s'.*'{name}'"):
        type("Mine", (suite,), {"opt_out": {f"{name}s": "cannot"}})


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
@pytest.mark.parametrize("reason", ["", "  ", None])
def test_a_reason_is_required(suite: type, reason: object) -> None:
    with pytest.raises(TypeError, match="give a reason"):
        type("Mine", (suite,), {"opt_out": {one_test(suite): reason}})


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
def test_a_test_cannot_be_overridden(suite: type) -> None:
    with pytest.raises(TypeError, match=f"Mine overrides {one_test(suite)};"):
        type("Mine", (suite,), {one_test(suite): lambda self: None})


def test_what_is_opted_out_is_skipped_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch
        from forge_core import LossOutput
        from forge_testing.conformance.loss import LossConformance
        from forge_testing.context import select

        class Constant:
            def __call__(self, logprobs, batch, outputs):
                return LossOutput(sum=logprobs.sum(), count=1)

        class TestMine(LossConformance):
            opt_out = {"test_any_split_adds_up_to_the_same": "its count is a constant"}

            @pytest.fixture
            def selection(self):
                return select("loss", lambda settings, context: Constant())
        """
    )
    result = pytester.runpytest_inprocess("-rs", "-p", "no:xdist", "-k", "any_split or is_pure")
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED*its count is a constant"])


def test_a_suite_without_opt_out_is_left_whole() -> None:
    class Mine(LossConformance):
        pass

    assert Mine.opt_out == {}
