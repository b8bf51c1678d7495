"""Forge plugin: recipe ``dpo`` and loss ``dpo``, direct preference optimization.

Rafailov et al., arXiv:2305.18290. A task is a prompt with the response that was preferred
(``response``) and, in ``task.metadata["rejected"]``, the one that was not.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from forge_core import (
    DataError,
    LossComponent,
    LossOutput,
    RecipeComponent,
    Settings,
    TrainSequence,
    hookimpl,
    steps_for,
)


class DpoLossSettings(Settings):
    """How strongly the policy is held to the reference."""

    beta: float = Field(0.1, gt=0, description="the larger, the closer to the reference")


class DpoLoss:
    """-log sigmoid(beta (margin of the chosen - margin of the rejected)), eq. 7; a margin is
    log(policy / reference) summed over a response. It counts pairs."""

    def __init__(self, settings):
        self.beta = settings.beta

    def __call__(self, logprobs, batch, outputs):
        import torch

        if batch.group is None:
            raise ValueError("sequences come without the pairs that they belong to")
        pair = batch.group[batch.sequence]  # of each trained token
        signed = batch.field("preference") * (logprobs - batch.field("reference_logprobs"))
        margins = self.beta * signed.new_zeros(batch.num_groups).index_add(0, pair, signed)
        margins = margins[torch.bincount(pair, minlength=batch.num_groups) > 0]
        pairs = margins.numel()
        return LossOutput(
            sum=-torch.nn.functional.logsigmoid(margins).sum(),
            count=pairs,
            metrics={
                "reward_margin": (margins.detach().sum(), pairs),
                "accuracy": ((margins > 0).sum(), pairs),
            },
        )


class Dpo:
    """Each step trains ``batch_size x gradient_accumulation_steps`` pairs."""

    def plan(self, config, dataset_length):
        training = config.training
        pairs = training.batch_size * training.gradient_accumulation_steps
        return steps_for(training, pairs, dataset_length)

    async def run(self, stage):
        training = stage.config.training
        size, parts = training.batch_size, training.gradient_accumulation_steps
        trainer = await stage.trainer()
        async for step in stage.steps():
            tasks = stage.take(size * parts)
            pairs = [both(task, number, stage) for number, task in enumerate(tasks)]
            sequences = [sequence for pair in pairs for sequence in pair]
            with step.timed("reference"):
                logprobs = await stage.reference_logprobs(sequences)
            ready = [
                replace(each, fields={**each.fields, "reference_logprobs": values})
                for each, values in zip(sequences, logprobs, strict=True)
            ]
            batches = [ready[at : at + 2 * size] for at in range(0, len(ready), 2 * size)]
            with step.timed("train"):
                step.trained(await trainer.train_step.route(batches))
            step.record({"epoch": stage.position / len(stage.dataset)})


def both(task, number, stage):
    """The chosen and the rejected response of a task, as the pair of this number."""
    from forge_models.examples import encode_example

    rejected = task.metadata.get("rejected")
    if task.response is None or rejected is None:
        raise DataError(f"task {task.id!r} needs a response and, beside it, 'rejected'")
    for response, preference in ((task.response, 1.0), (rejected, -1.0)):
        example = encode_example(task.prompt, response, stage.tokenizer, task.tools)
        mask = [False] * len(example.given) + [True] * len(example.learned)
        fields = {"preference": preference}
        yield TrainSequence([*example.given, *example.learned], mask, fields, group=number)


@hookimpl
def forge_losses():
    yield LossComponent(
        name="dpo",
        settings=DpoLossSettings,
        build=DpoLoss,
        needs={"preference", "reference_logprobs"},
        summary="direct preference optimization, on pairs",
    )


@hookimpl
def forge_recipes():
    yield RecipeComponent(
        name="dpo",
        settings=Settings,
        build=Dpo,
        requires={"dataset", "trainer", "loss"},
        provides={"preference", "reference_logprobs"},
        defaults={"loss": {"use": "dpo"}, "training": {"batch_size": 8}},
        summary="direct preference optimization, on pairs",
    )
