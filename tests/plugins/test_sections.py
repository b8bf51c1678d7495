"""A family of a plugin's own, from packages outside the tree with real entry points."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forge_core import Section, hookimpl
from forge_testing.runs import small_config

FAMILY = """
    from forge_core import Component, RecipeComponent, Section, Settings, hookimpl
    from pydantic import Field

    class LenientSettings(Settings):
        score: float = Field(0.5, ge=0, description="what every answer gets")

    class Lenient:
        def __init__(self, score):
            self.score = score

        async def compare(self, one, other):
            import os
            return [self.score, os.getpid()]

        async def close(self):
            pass

    def build_lenient(settings, context):
        return Lenient(settings.score)

    class RecipeSettings(Settings):
        pass

    class Judged:
        def plan(self, config, dataset_length):
            return 1

        async def run(self, stage):
            judge = await stage.service("judge")
            factor = stage.component("scale")
            async for step in stage.steps():
                score, process = await judge.compare.route("a", "b")
                step.record({"judged": factor * score, "judge": process})

    def build_judged(settings, context):
        return Judged()

    class TwiceSettings(Settings):
        pass

    def build_twice(settings, context):
        return 2

    @hookimpl
    def forge_sections():
        yield Section(
            name="judge", hook="forge_judges", summary="who compares answers", placed=True
        )
        yield Section(name="scale", hook="forge_scales", summary="what scores are multiplied by")

    @hookimpl
    def forge_judges():
        yield Component(
            name="lenient", settings=LenientSettings, build=build_lenient, summary="likes all"
        )

    @hookimpl
    def forge_scales():
        yield Component(
            name="twice", settings=TwiceSettings, build=build_twice, summary="doubles"
        )

    @hookimpl
    def forge_recipes():
        yield RecipeComponent(
            name="judged",
            settings=RecipeSettings,
            build=build_judged,
            requires={"trainer", "judge", "scale"},
            summary="asks a judge",
        )
"""
MEMBER = """
    from forge_core import Component, RecipeComponent, Settings, hookimpl

    class StrictSettings(Settings):
        limit: int = 3

    def build_strict(settings, context):
        raise NotImplementedError

    @hookimpl(optionalhook=True)
    def forge_judges():
        yield Component(
            name="strict", settings=StrictSettings, build=build_strict, summary="no mercy"
        )
"""


@pytest.fixture
def family(fake_distribution) -> Path:
    """Install the family and, as another package, a component for it."""
    fake_distribution("acme-strict", MEMBER)
    return fake_distribution("acme-judges", FAMILY).parent


def config(**sections):
    base = small_config(recipe={"use": "judged"}, scale={"use": "twice"}, **sections)
    return {**base, "training": {"steps": 1}}


def test_it_is_listed_with_the_components_of_all_plugins(family, run_forge):
    page = json.loads(run_forge("plugins", "--json").stdout)
    judges = [each for each in page["components"] if each["family"] == "judge"]
    assert [(each["name"], each["provider"]) for each in judges] == [
        ("lenient", "acme-judges"),
        ("strict", "acme-strict"),
    ]
    lines = [line.split() for line in run_forge("plugins").stdout.splitlines()]
    assert ["judge", "lenient", "likes", "all", "acme-judges"] in lines


def test_it_is_configured_from_every_layer_and_explained(
    family, run_forge, write_config, monkeypatch
):
    path = str(write_config(config(judge={"use": "lenient", "score": 0.25, "procs": 2})))
    shown = run_forge("config", "show", path).stdout
    assert "judge:\n  use: lenient\n" in shown
    explained = run_forge("config", "explain", "judge", path).stdout
    assert "judge.score" in explained
    assert "what every answer gets" in explained
    assert "a number, at least 0" in explained
    assert f"{Path(path).name}:" in explained
    monkeypatch.setenv("FORGE_JUDGE__REPLICAS", "3")
    assert "FORGE_JUDGE__REPLICAS" in run_forge("config", "explain", "judge.replicas", path).stdout
    # Another component drops the first one's keys, but not the kernel's.
    other = run_forge("config", "show", path, "judge.use=strict").stdout
    assert "judge:\n  use: strict\n  procs: 2\n" in other
    assert "score" not in other


@pytest.mark.parametrize(
    ("judge", "error"),
    [
        ({"use": "lenient", "scor": 1}, "judge.scor: unknown key"),
        ({"use": "lenient", "score": -1}, "judge.score: "),
        ({"use": "lenien"}, "no judge is called 'lenien'; did you mean 'lenient'?"),
        ("lenient", "judge: must be a mapping; not 'lenient'; write judge.use=lenient"),
        (None, "judge: recipe 'judged' (stage 'judged') needs this section"),
    ],
)
def test_what_is_wrong_in_it_is_refused_like_anything(
    judge, error, family, run_forge, write_config
):
    if judge is None:  # what a recipe requires is looked at after the tokenizer
        pytest.importorskip("transformers")
    result = run_forge("run", "--dry-run", str(write_config(config(judge=judge))))
    assert result.exit_code == 2
    assert error in result.stderr


def test_it_is_in_the_schema(family, run_forge):
    schema = json.loads(run_forge("config", "schema").stdout)
    section = schema["properties"]["judge"]
    assert section["description"] == "who compares answers; a judge, chosen by use"
    lenient = section["anyOf"][0]["properties"]
    assert {"use", "score", "replicas", "deadline"} <= lenient.keys()
    assert "replicas" not in schema["properties"]["scale"]["anyOf"][0]["properties"]
    assert (
        "judge" in schema["properties"]["stages"]["additionalProperties"]["anyOf"][0]["properties"]
    )
    one = run_forge("config", "schema", "--family", "judge", "--component", "lenient").stdout
    assert json.loads(one)["properties"]["use"]["const"] == "lenient"


def test_it_counts_for_the_plan_and_for_gpus(family, run_forge, write_config):
    pytest.importorskip("torch")
    path = str(write_config(config(judge={"use": "lenient", "replicas": 2, "isolate": True})))
    plan = run_forge("plan", path)
    assert plan.exit_code == 0, plan.stderr
    assert "judge" in plan.stdout
    assert "lenient" in plan.stdout
    greedy = run_forge("run", "--dry-run", path, "judge.with_gpus=true", "judge.replicas=999")
    assert greedy.exit_code == 2
    assert "judge" in greedy.stderr


def test_a_recipe_uses_it_in_processes_of_its_own(
    family, run_forge_process, write_config, tmp_path
):
    pytest.importorskip("torch")
    path = write_config(config(judge={"use": "lenient", "isolate": True, "score": 4.0}))
    output = tmp_path / "runs"
    environ = {"PYTHONPATH": f"{family}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = run_forge_process(
        "run", str(path), f"checkpointing.output_dir={output}", environ=environ
    )
    assert result.exit_code == 0, result.stderr
    (folder,) = output.iterdir()
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert record["judged"] == 8.0
    assert not Path(f"/proc/{int(record['judge'])}").exists()  # it ended with the run
    assert "judge_" in json.dumps(record["timing"])
    # The resolved config of the run loads again as it stands.
    assert "score: 4.0" in (folder / "config.yaml").read_text()


def test_without_the_family_its_section_is_unknown(fake_distribution, run_forge, write_config):
    fake_distribution("acme-strict", MEMBER)
    assert " ok" in run_forge("plugins").stdout
    result = run_forge("run", "--dry-run", str(write_config(small_config(judge={"use": "strict"}))))
    assert result.exit_code == 2
    assert "judge: unknown section" in result.stderr


def test_a_broken_family_goes_with_its_plugin(fake_distribution, run_forge):
    fake_distribution("acme-strict", MEMBER)
    fake_distribution("acme-judges", FAMILY + "\n    1 / 0\n")
    shown = run_forge("plugins").stdout
    assert "ZeroDivisionError" in shown
    assert "no mercy" not in shown


@pytest.mark.parametrize(
    ("section", "cause"),
    [
        (Section(name="loss", hook="forge_mine", summary=""), "the kernel has a section or family"),
        (Section(name="reward", hook="forge_mine", summary=""), "the kernel has a section or"),
        (Section(name="judge", hook="forge_losses", summary=""), "there is a hook forge_losses"),
        (Section(name="judge", hook="judges", summary=""), "hooks are called forge_..."),
        (Section(name="My judge", hook="forge_mine", summary=""), "lower case words joined by _"),
        ("judge", "yielded a str, not a Section"),
    ],
)
def test_what_cannot_be_a_section(section, cause, fake_distribution, run_forge):
    fake_distribution(
        "acme-bad",
        f"""
        from forge_core import Section, hookimpl

        @hookimpl
        def forge_sections():
            yield {section!r}
        """,
    )
    assert cause in run_forge("plugins").stdout


def test_two_plugins_with_one_section(forge_app):
    class Mine:
        @hookimpl
        def forge_sections(self):
            yield Section(name="judge", hook="forge_judges", summary="")

    class Other(Mine):
        pass

    with pytest.raises(Exception, match="plugin Mine has a section or family of that name"):
        forge_app(Mine(), Other()).plugins  # noqa: B018
