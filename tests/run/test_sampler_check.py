"""The generator samples from the distribution that a loss with importance ratios assumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forge_core import Forge, GeneratorComponent, Selection, Settings, UsageError
from forge_run.preflight import check_sampler
from forge_testing.runs import small_config


@pytest.mark.parametrize("loss", ["grpo", "gspo", "reinforce"])
def test_a_generator_with_a_distribution_of_its_own_is_refused_for_losses_with_ratios(
    loss: str,
) -> None:
    (stage,) = Forge().resolve(small_config(), {"loss.use": loss}).stages
    component = GeneratorComponent(
        name="biased",
        settings=Settings,
        build=lambda settings, context: None,
        summary="",
        alters_sampling=lambda settings: ["generator.bias"],
    )
    generator = Selection(family="generator", component=component, settings=Settings())
    stage = replace(stage, generator=generator)
    if loss == "reinforce":
        check_sampler(stage)
    else:
        with pytest.raises(UsageError, match=rf"generator\.bias: not with loss '{loss}'"):
            check_sampler(stage)
