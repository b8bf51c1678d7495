"""The loss and the recipe keep their contracts, pairs stay together, and the margin grows."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import acme_dpo
import pytest
import torch

from forge_core import DataError, Forge, Selection
from forge_testing.conformance.loss import LossConformance
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import lines_of, small_config

FOLDER = Path(__file__).parents[1]


class TestLoss(LossConformance):
    groups = (0, 1, 0, 1)

    @pytest.fixture
    def selection(self) -> Selection:
        (component,) = acme_dpo.forge_losses()
        return Selection(family="loss", component=component, settings=component.settings())

    def make_rows(self, needs: Set[str]):
        rows = super().make_rows(needs)
        for number, values in enumerate(rows.fields["preference"]):
            values.fill_(1.0 if number < 2 else -1.0)
        return rows


def test_the_loss_is_equation_7() -> None:
    """Written a second time: one pair, two tokens chosen and one rejected."""
    from forge_core import LossBatch

    policy, reference = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -2.0])
    batch = LossBatch(
        sequence=torch.tensor([0, 0, 1]),
        num_sequences=2,
        fields={"reference_logprobs": reference, "preference": torch.tensor([1.0, 1.0, -1.0])},
        group=torch.tensor([0, 0]),
        num_groups=1,
    )
    output = acme_dpo.DpoLoss(acme_dpo.DpoLossSettings(beta=0.5))(policy, batch, None)
    chosen, rejected = (-1.0 - 2.0) - (-1.5 - 2.0), -3.0 - -2.0
    expected = -torch.tensor(0.5 * (chosen - rejected)).sigmoid().log()
    torch.testing.assert_close(output.sum, expected)
    assert output.count == 1


def config(**training):
    return small_config(
        recipe={"use": "dpo"},
        dataset={"use": "jsonl", "path": str(FOLDER / "pairs.jsonl"), "response": "chosen"},
        training={"steps": 4, "batch_size": 8, "learning_rate": 0.003, **training},
    )


class TestRecipe(RecipeConformance):
    config = config()
    plugins = (acme_dpo,)


@pytest.mark.parametrize(
    "changes",
    [
        {"training.batch_size": 2, "training.gradient_accumulation_steps": 4},
        {"training.batch_size": 1, "training.gradient_accumulation_steps": 8},
        {"trainer.max_tokens_per_micro_batch": 1},  # less than one sequence: pairs stay whole
    ],
    ids=str,
)
def test_any_split_gives_the_same_numbers(tmp_path: Path, changes: dict) -> None:
    rows = [
        lines_of(
            Forge(plugins=[acme_dpo])
            .run(config(), {"checkpointing.output_dir": str(tmp_path / name), **more})
            .folder
            / "metrics.jsonl"
        )
        for name, more in (("whole", {}), ("split", changes))
    ]
    for whole, split in zip(*rows, strict=True):
        for name in ("loss", "reward_margin", "grad_norm"):
            assert whole[name] == pytest.approx(split[name], rel=1e-4, abs=1e-6)
    # In the first step policy and reference are equal: the sign of a margin is that of rounding.
    for whole, split in zip(*(each[1:] for each in rows), strict=True):
        assert whole["accuracy"] == split["accuracy"]


def test_the_reward_margin_grows(tmp_path: Path) -> None:
    summary = Forge(plugins=[acme_dpo]).run(
        FOLDER / "dpo.yaml",
        {"checkpointing.output_dir": str(tmp_path), "dataset.path": str(FOLDER / "pairs.jsonl")},
    )
    rows = lines_of(summary.folder / "metrics.jsonl")
    assert rows[0]["loss"] == pytest.approx(0.6931, abs=1e-3), "the policy starts as the reference"
    assert rows[0]["reward_margin"] == pytest.approx(0, abs=1e-4)
    assert rows[-1]["reward_margin"] > 0.5
    assert rows[-1]["accuracy"] > 0.9


def test_a_row_without_the_other_response_is_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "response": "2"}\n', encoding="utf-8")
    changes = {"dataset": {"path": str(rows), "response": "response"}, "training.batch_size": 1}
    with pytest.raises(DataError, match=r"rows.jsonl:1' needs a response and, beside it"):
        Forge(plugins=[acme_dpo]).run(
            config(), {"checkpointing.output_dir": str(tmp_path / "runs"), **changes}
        )
