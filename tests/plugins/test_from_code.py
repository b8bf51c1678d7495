"""Functions and classes in files, or handed over in code, as components of every family."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from forge_core import ConfigError, Forge, Task
from forge_core.config.schema import model_schema
from forge_local.processes.frames import dumps
from forge_testing.context import bare_context

FILE = '''
    """Everything a run can be given from one file."""
    from __future__ import annotations

    from dataclasses import dataclass
    from typing import Literal

    from beside import SPAN
    from forge_core import LossOutput, RewardComponent, RewardResult, Settings, Task


    def brevity(sample, *, limit: int = 10, mode: Literal["hard", "soft"] = "soft"):
        """Pays for short answers."""
        return RewardResult(float(len(sample.completion) <= limit), {"span": SPAN})


    def weighs(sample, weight=1.0):
        return weight


    def policy(logprobs, batch, outputs, scale=2.0):
        return LossOutput(-scale * logprobs.sum(), logprobs.numel())


    policy.needs = frozenset({"advantages"})


    def plain(logprobs, batch, outputs):
        return LossOutput(-logprobs.sum(), logprobs.numel())


    @dataclass
    class Guess:
        """A guessing game."""

        high: int
        max_turns: int = 3

        async def start(self, task, seed):
            return None


    def tasks(count: int = 4, *, context):
        return [Task(f"{n}:{context.seed}", f"{n}+1=", answer=str(n + 1)) for n in range(count)]


    class Limit(Settings):
        most: int = 5


    def build_declared(settings, context):
        return lambda sample: float(len(sample.completion) <= settings.most)


    declared = RewardComponent(
        name="declared", settings=Limit, build=build_declared, summary="has settings of its own"
    )
    number = 7


    class Broken:
        def __init__(self):
            raise KeyError("no table")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("SPAN = 3\n")
    path = tmp_path / "mine.py"
    path.write_text(dedent(FILE))
    return path


@pytest.fixture
def config(file: Path):
    """Writes a config beside the file."""

    def write(text: str) -> Path:
        path = file.with_name("run.yaml")
        path.write_text("recipe: {use: grpo}\n" + dedent(text))
        return path

    return write


def resolved(source, overrides=()):
    return Forge().resolve(source, overrides).stages[0]


def test_a_function_is_a_reward_with_its_parameters_as_settings(config, file, monkeypatch):
    pytest.importorskip("forge_grpo")
    path = config("rewards: {brevity: {use: 'mine.py:brevity', limit: 5, weight: 2.0}}")
    monkeypatch.chdir("/")  # relative to the file that names it
    stage = resolved(path)
    part = stage.rewards["brevity"]
    assert part.weight == 2.0
    assert part.selection.settings.model_dump() == {"limit": 5, "mode": "soft"}
    assert part.selection.plugin == str(file)
    reward = part.selection.build(bare_context())
    assert reward.func.__name__ == "brevity"
    assert reward.keywords == {"limit": 5, "mode": "soft"}
    assert dumps(part.selection)


def test_the_recorded_config_finds_it_from_everywhere(config, file, tmp_path, monkeypatch):
    pytest.importorskip("forge_grpo")
    path = config("rewards: {brevity: {use: 'mine.py:brevity'}}")
    whole = Forge().resolve(path)
    reference = f"{file}:brevity"
    assert whole.tree["rewards"]["brevity"]["use"] == reference
    provenance = whole.provenance["rewards.brevity.use"]
    assert provenance.value == reference
    assert provenance.where.endswith("run.yaml:2")
    again = Forge().resolve({**whole.tree})
    assert again.tree == whole.tree


def test_every_family_takes_one(config, file):
    pytest.importorskip("forge_grpo")
    torch = pytest.importorskip("torch")
    stage = resolved(
        config(
            """
            loss: {use: "mine.py:policy", scale: 3}
            environment: {use: "mine.py:Guess", high: 9}
            dataset: {use: "mine.py:tasks", count: 2}
            rewards: {declared: {use: "mine.py:declared", most: 2}}
            """
        )
    )
    context = bare_context()
    loss = stage.loss.build(context)
    assert stage.loss.needs == {"advantages"}
    assert loss.keywords == {"scale": 3.0}
    assert stage.environment.build(context).high == 9
    tasks = stage.dataset.build(context)
    assert [task.answer for task in tasks] == ["1", "2"]
    assert tasks[0].id == "0:0"
    assert stage.rewards["declared"].selection.settings.most == 2
    selection = resolved(config("loss: {use: 'mine.py:plain'}")).loss
    plain = selection.build(context)
    assert selection.needs == frozenset()
    assert float(plain(torch.ones(2), None, None).sum) == -2.0


def test_the_command_line_is_relative_to_the_working_directory(file, monkeypatch):
    pytest.importorskip("forge_grpo")
    monkeypatch.chdir(file.parent)
    overrides = ["recipe.use=grpo", "rewards.b.use=mine.py:brevity", "rewards.b.limit=3"]
    assert resolved(None, overrides).rewards["b"].selection.settings.limit == 3


def test_objects_can_be_handed_over_in_code():
    pytest.importorskip("forge_grpo")

    def short(sample, limit: int = 3):
        return float(len(sample.completion) <= limit)

    class Numbers:
        def __init__(self, count: int):
            self.tasks = [Task(str(n), "?") for n in range(count)]

        def __len__(self):
            return len(self.tasks)

        def __getitem__(self, index):
            return self.tasks[index]

    stage = resolved(
        {
            "recipe": {"use": "grpo"},
            "rewards": {"short": {"use": short, "limit": 4}},
            "dataset": {"use": Numbers, "count": 3},
        }
    )
    assert stage.rewards["short"].selection.settings.limit == 4
    assert len(stage.dataset.build(bare_context())) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rewards: {b: {use: 'none.py:b'}}", "none.py: cannot be read: No such file or directory"),
        ("rewards: {b: {use: 'mine.py:brevty'}}", "mine.py has no brevty; did you mean brevity?"),
        ("rewards: {b: {use: 'mine.py:number'}}", "number is of type int, not a function"),
        ("dataset: {use: 'mine.py:number'}", "number is of type int, not a dataset"),
        (
            "rewards: {b: {use: 'mine.py:weighs'}}",
            "weighs: parameter 'weight' has the name of a key that every reward has in a config",
        ),
        (
            "rewards: {b: {use: 'mine.py:brevity', limt: 1}}",
            "rewards.b.limt: unknown key of reward brevity; did you mean rewards.b.limit?",
        ),
        ("rewards: {b: {use: 'mine.py:brevity', limit: many}}", "rewards.b.limit: "),
        ("rewards: {b: {use: 'mine.py:brevity', mode: odd}}", "rewards.b.mode: "),
        ("environment: {use: 'mine.py:Guess'}", "environment.high: "),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(config, text, problem):
    pytest.importorskip("forge_grpo")
    with pytest.raises(ConfigError) as caught:
        resolved(config(text))
    (line,) = caught.value.problems
    assert "run.yaml:2: " in line
    assert problem in line


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("def f(sample:\n", "mine.py:1: SyntaxError: '(' was never closed"),
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def g():\n    1 / 0\ng()\n", "division by zero (mine.py:2, in g)"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_run(config, file, content, problem):
    pytest.importorskip("forge_grpo")
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        resolved(config("rewards: {f: {use: 'mine.py:f'}}"))
    assert problem in str(caught.value)


def test_a_file_that_was_edited_is_run_again(config, file):
    pytest.importorskip("forge_grpo")
    forge, path = Forge(), config("rewards: {f: {use: 'mine.py:f'}}")
    for number in (1, 2):
        file.write_text(f"def f(sample, limit: int = {number}): return 1.0\n")
        (stage,) = forge.resolve(path).stages
        assert stage.rewards["f"].selection.settings.limit == number


def test_a_failing_build_names_file_line_and_function(config):
    pytest.importorskip("forge_grpo")
    with pytest.raises(KeyError) as caught:
        resolved(config("dataset: {use: 'mine.py:Broken'}")).dataset.build(bare_context())
    from forge_core.contracts.blame import described

    assert described(caught.value) == "KeyError: 'no table' (mine.py:63, in __init__)"


def test_a_lambda_has_no_name():
    with pytest.raises(ConfigError, match=r"needs a name; write it with def"):
        resolved({"recipe": {"use": "grpo"}, "rewards": {"m": {"use": lambda sample: 1.0}}})


def test_the_schema_of_its_settings(config):
    pytest.importorskip("forge_grpo")
    stage = resolved(config("rewards: {b: {use: 'mine.py:brevity'}}"))
    schema = model_schema(type(stage.rewards["b"].selection.settings))
    assert schema["properties"]["mode"]["enum"] == ["hard", "soft"]
