"""Services of a recipe's own: a critic, a second policy with generators, a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    ConfigError,
    Forge,
    LossBatch,
    LossComponent,
    LossOutput,
    Placement,
    PluginError,
    RecipeComponent,
    RecipeContext,
    RecipeService,
    RunStopped,
    Selection,
    Settings,
    Step,
    TrainSequence,
    UsageError,
    hookimpl,
)
from forge_models.prompts import encode_prompt
from forge_run.unused import unused_keys
from forge_testing.command import run_in_process
from forge_testing.runs import StopAt, lines_of, small_config, untimed

OPPONENT = {
    "init": {**small_config()["model"]["init"], "seed": 9},
}


class Squares:
    """The critic's loss: (logprob + 1)^2."""

    def __call__(self, logprobs: Any, batch: LossBatch, entropy: Any) -> LossOutput:
        return LossOutput(sum=((logprobs + 1) ** 2).sum(), count=logprobs.numel())


SQUARES = LossComponent(
    name="squares", settings=Settings, build=lambda *_: Squares(), summary="a test's"
)


class Duel:
    """Two policies and a critic, each trained in every step on what the first two sample."""

    def __init__(self, **changes: RecipeService) -> None:
        self.changes = changes

    def plan(self, config: Any, dataset_length: int) -> int:
        steps: int = config.training.steps
        return steps

    def services(self, config: Any) -> Mapping[str, RecipeService]:
        squares = Selection(family="loss", component=SQUARES, settings=Settings())
        return {
            "critic": RecipeService(
                section="trainer",
                loss=squares,
                training={"learning_rate": 0.02, "max_grad_norm": 0.5},
                placement=Placement(isolate=True),
                checkpoint=True,
            ),
            "rival": RecipeService(
                section="trainer", model="opponent", loss=config.loss, checkpoint=True
            ),
            "rival_generator": RecipeService(
                section="generator", model="opponent", weights_from="rival"
            ),
            **self.changes,
        }

    async def run(self, stage: RecipeContext) -> None:
        trainers = {"trainer": await stage.trainer(), "rival": await stage.service("rival")}
        samplers = {
            "trainer": await stage.generator(),
            "rival": await stage.service("rival_generator"),
        }
        critic = await stage.service("critic")
        prompt = encode_prompt("1+1=", stage.tokenizer)
        async for step in stage.steps():
            sampled = []
            for name, trainer in trainers.items():
                generate, sampling = samplers[name].generate, stage.sampling(seed=step.number)
                (completion,) = await generate.route(prompt, sampling)
                assert set(completion.versions) == {stage.versions[name]}
                mask = [False] * len(prompt) + [True] * len(completion.tokens)
                sampled.append(TrainSequence([*prompt, *completion.tokens], mask))
                result = await trainer.train_step.route([sampled[-1:]])
                step.record({f"{name}/loss": result.loss, f"{name}/rate": result.learning_rate})
            result = await critic.train_step.route([sampled])
            step.record({"critic/loss": result.loss, "critic/rate": result.learning_rate})
            await stage.publish()
            if step.number % 3 == 0:  # the second policy's versions are its own
                await stage.publish("rival")
            step.record({f"version/{name}": version for name, version in stage.versions.items()})


def acme(recipe: Any, uses: str = "generator") -> Any:
    class Acme:
        @hookimpl
        def forge_recipes(self) -> Any:
            yield RecipeComponent(
                name="duel",
                settings=Settings,
                build=lambda *_: recipe,
                requires={"dataset", "trainer", "loss", uses},
                summary="a test's",
            )

    return Acme()


def config(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    return small_config(
        recipe={"use": "duel"},
        models={"opponent": OPPONENT},
        loss={"use": "cross_entropy"},
        training={"steps": 5, "learning_rate": 0.01, "schedule": "linear"},
        checkpointing={"save_interval": 3, "output_dir": str(tmp_path)},
        trackers={"console": None},
        **sections,
    )


def test_a_critic_and_a_second_policy_go_on_bit_for_bit(tmp_path: Path) -> None:
    whole = Forge(plugins=[acme(Duel())]).run(config(tmp_path / "whole"))
    stopping = Forge(plugins=[acme(Duel()), StopAt(4)])
    with pytest.raises(RunStopped):
        stopping.run(config(tmp_path / "stopped"))
    (folder,) = (tmp_path / "stopped").iterdir()
    Forge(plugins=[acme(Duel())]).run(resume=folder)
    rows, resumed = (untimed(lines_of(each / "metrics.jsonl")) for each in (whole.folder, folder))
    assert rows == resumed
    assert [row["version/rival"] for row in rows] == [0, 0, 1, 1, 1]
    assert [row["version/trainer"] for row in rows] == [1, 2, 3, 4, 5]
    assert [rows[0][f"{name}/rate"] for name in ("trainer", "critic")] == [0.01, 0.02]
    for service in ("", "services/critic", "services/rival"):
        held = [
            (each / "checkpoints" / "step_5" / service / "model.safetensors").read_bytes()
            for each in (whole.folder, folder)
        ]
        assert held[0] == held[1]
    timing = lines_of(folder / "metrics.jsonl")[-1]["timing"]
    assert timing["critic_calls"] >= 1
    assert timing["rival_generator_calls"] == 1


def test_plan_and_dry_run_know_them(tmp_path: Path, write_config: Any) -> None:
    app = Forge(plugins=[acme(Duel(coach=RecipeService(section="trainer", model="opponent")))])
    file = write_config(config(tmp_path))
    shown = run_in_process("plan", str(file), app=app).stdout
    for name in ("critic", "rival", "rival_generator", "coach"):
        assert f"  {name} " in shown
    assert "of the coach's fullest rank" in shown
    resolved = app.resolve(file, {"trainer.with_gpus": True, "trainer.isolate": True})
    placements = resolved.stages[0].placements()
    assert placements["rival"].with_gpus
    assert not placements["critic"].with_gpus
    assert not placements["rival_generator"].with_gpus


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"coach": RecipeService(section="trainer", model="nanny")}, UsageError, "needs a model"),
        ({"coach": RecipeService(section="reference")}, UsageError, "needs this section"),
        ({"coach": RecipeService()}, PluginError, "give either a section or a selection"),
        ({"Coach": RecipeService(section="trainer")}, PluginError, "lower-case words"),
        ({"trainer": RecipeService(section="trainer")}, PluginError, "lower-case words"),
        (
            {"coach": RecipeService(section="generator", weights_from="missing")},
            PluginError,
            "takes weights from 'missing'",
        ),
        (
            {"coach": RecipeService(section="trainer", training={"lr": 1.0})},
            PluginError,
            "training has no lr",
        ),
        ({"coach": "trainer"}, PluginError, "a dict of name -> forge_core.RecipeService"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_the_start(
    tmp_path: Path, changes: Any, error: type[Exception], message: str
) -> None:
    app = Forge(plugins=[acme(Duel(**changes))])
    with pytest.raises(error, match=message):
        app.check(config(tmp_path))


def test_a_model_that_nothing_holds_is_named(tmp_path: Path) -> None:
    tree = config(tmp_path)
    tree["models"]["nanny"] = tree["models"]["opponent"]
    lines = unused_keys(Forge(plugins=[acme(Duel())]).resolve(tree))
    (line,) = [line for line in lines if "models" in line]
    assert line.startswith("models.nanny.init")
    assert "does nothing: no reference and no service of a recipe holds this model" in line


class Distil:
    """Learns from what a model in ``models:`` holds likely, through section ``reference``."""

    def plan(self, config: Any, dataset_length: int) -> int:
        steps: int = config.training.steps
        return steps

    async def run(self, stage: RecipeContext) -> None:
        trainer = await stage.trainer()
        sequence = TrainSequence(encode_prompt("1+1=2", stage.tokenizer), [False] * 4 + [True])
        async for step in stage.steps():
            await self._step(stage, trainer, step, sequence)

    async def _step(
        self, stage: RecipeContext, trainer: Any, step: Step, sequence: TrainSequence
    ) -> None:
        ((*_, taught),) = await stage.reference_logprobs([sequence])
        ((*_, own),) = await trainer.logprobs.route([sequence])
        step.record({"teacher": taught, "student": own})
        step.trained(await trainer.train_step.route([[sequence]]))


def test_a_reference_may_hold_a_model_of_its_own(tmp_path: Path) -> None:
    app = Forge(plugins=[acme(Distil(), "reference")])
    tree = config(tmp_path, reference={"use": "torch", "model": "opponent"})
    summary = app.run(tree)
    other = {"models.opponent.init.seed": 10}
    with pytest.raises(UsageError, match=r"models.opponent: .* has made this model"):
        app.run(None, other, resume=summary.folder)
    rows = lines_of(summary.folder / "metrics.jsonl")
    assert len({row["teacher"] for row in rows}) == 1
    assert rows[0]["teacher"] != rows[0]["student"]
    with pytest.raises(UsageError, match=r"reference.model: models: has no 'nanny' \(it has: opp"):
        app.check({**tree, "reference": {"use": "torch", "model": "nanny"}})


def test_models_are_checked_and_explained(tmp_path: Path, write_config: Any) -> None:
    app = Forge(plugins=[acme(Duel())])
    with pytest.raises(ConfigError, match=r"models\.opponent\.pth: unknown key"):
        app.resolve({**config(tmp_path), "models": {"opponent": {"pth": "x"}}})
    file = write_config(config(tmp_path))
    shown = run_in_process("config", "explain", "models.opponent.init.seed", str(file), app=app)
    assert "9" in shown.stdout, shown.stderr
    message = r"models\.opponent"
    with pytest.raises(Exception, match=message):
        app.check({**config(tmp_path), "models": {"opponent": {"path": str(tmp_path / "none")}}})
