"""A small world of components whose settings show every way in which a config can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import forge_config.plugin
import forge_local.plugin
from forge_core import (
    BuildContext,
    DatasetComponent,
    EnvironmentComponent,
    Forge,
    GeneratorComponent,
    LossComponent,
    OptimizerComponent,
    Preset,
    RecipeComponent,
    RewardComponent,
    RunConfig,
    ScheduleComponent,
    Settings,
    TrackerComponent,
    TrainerComponent,
    TransportComponent,
    hookimpl,
)
from forge_core.config.resolve import resolve
from forge_core.contracts.families import COMPONENT_TYPES
from forge_core.plugins.catalog import Catalog


class TorchGenerator(Settings):
    """Decoding."""

    max_batch: int = Field(16, ge=1, description="rows decoded together")


class RemoteGenerator(Settings):
    """A server."""

    url: str = Field(description="where the server listens")


class TorchTrainer(Settings):
    """Training."""

    fused: bool = Field(False, description="one kernel for the whole optimizer step")


class ShardedTrainer(Settings):
    """Training over many processes."""

    shards: int = 2


class GrpoLoss(Settings):
    """Clipped ratio."""

    clip: float = Field(0.2, gt=0, description="half width of the ratio's window")
    aggregate: Literal["tokens", "sequences"] = "tokens"


class PpoLoss(Settings):
    """Another clipped ratio."""

    clip_range: float = 0.1


class Nothing(Settings):
    """No settings."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Settings):
    """Moments."""

    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="decay rates of the moments")
    weight_decay: float = Field(0.0, ge=0)


class Exact(Settings):
    """Compares text."""

    strip: bool = True


class Lines(Settings):
    """A file of tasks."""

    path: Path = Field(description="the file")
    fields: dict[str, str] = Field(default_factory=dict, description="field names in the file")
    splits: list[str] = Field(default_factory=list)
    scale: int | str | None = None


class Console(Settings):
    """Lines on a terminal."""

    interval: float = 5.0


SFT = {"loss": {"use": "cross_entropy"}, "training": {"batch_size": 8}}
GRPO = {"loss": {"use": "grpo"}, "training": {"batch_size": 64}}


class Sft(Settings):
    """Imitation."""


class Grpo(Settings):
    """Groups."""

    group_size: int = 8


def build(settings: Settings, context: BuildContext) -> Settings:
    return settings


def component(
    family: str, name: str, settings: type[Settings], *, default: bool = False, **says: Any
) -> Any:
    kind = COMPONENT_TYPES[family]
    if family == "transport":
        says["reach"] = "process"
    summary = f"the {name} one"
    return kind(name=name, settings=settings, build=build, summary=summary, default=default, **says)


class World:
    """Components and presets for these tests."""

    def __init__(self, presets: Sequence[Preset] = ()) -> None:
        self.presets = presets

    @hookimpl
    def forge_generators(self) -> Iterator[GeneratorComponent]:
        yield component("generator", "torch", TorchGenerator, default=True)
        yield component("generator", "remote", RemoteGenerator)

    @hookimpl
    def forge_trainers(self) -> Iterator[TrainerComponent]:
        yield component("trainer", "torch", TorchTrainer, default=True)
        yield component("trainer", "sharded", ShardedTrainer)

    @hookimpl
    def forge_losses(self) -> Iterator[LossComponent]:
        yield component("loss", "cross_entropy", Nothing)
        yield component("loss", "grpo", GrpoLoss)
        yield component("loss", "ppo", PpoLoss)

    @hookimpl
    def forge_optimizers(self) -> Iterator[OptimizerComponent]:
        yield component("optimizer", "adamw", AdamW, default=True)
        yield component("optimizer", "plain", Nothing)

    @hookimpl
    def forge_schedules(self) -> Iterator[ScheduleComponent]:
        yield component("schedule", "constant", Nothing, default=True)
        yield component("schedule", "cosine", Nothing)

    @hookimpl
    def forge_rewards(self) -> Iterator[RewardComponent]:
        yield component("reward", "exact_match", Exact)
        yield component("reward", "math", Nothing)

    @hookimpl
    def forge_environments(self) -> Iterator[EnvironmentComponent]:
        yield component("environment", "single_turn", Nothing, default=True)

    @hookimpl
    def forge_transports(self) -> Iterator[TransportComponent]:
        yield component("transport", "memory", Nothing, default=True)

    @hookimpl
    def forge_recipes(self) -> Iterator[RecipeComponent]:
        yield component("recipe", "sft", Sft, default=True, defaults=SFT)
        yield component("recipe", "grpo", Grpo, defaults=GRPO)

    @hookimpl
    def forge_datasets(self) -> Iterator[DatasetComponent]:
        yield component("dataset", "lines", Lines)

    @hookimpl
    def forge_trackers(self) -> Iterator[TrackerComponent]:
        yield component("tracker", "console", Console, default=True)
        yield component("tracker", "jsonl", Nothing, default=True)

    @hookimpl
    def forge_presets(self) -> Iterator[Preset]:
        yield from self.presets


TWO_STAGES = """\
model:
  name: tiny
training:
  learning_rate: 1e-3
rewards:
  exact_match: {}
stages:
  sft:
    recipe: {use: sft}
    training: {steps: 300}
  grpo:
    recipe: {use: grpo, group_size: 4}
    training: {steps: 200, learning_rate: 5e-4}
    loss: {clip: 0.3}
"""

MODEL_PRESET = """\
model: {dtype: bfloat16}
sampling: {max_tokens: 99}
"""


@pytest.fixture
def presets(tmp_path: Path) -> list[Preset]:
    """A run preset of two stages, and a model preset."""
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "two.yaml").write_text(TWO_STAGES)
    (folder / "model.yaml").write_text(MODEL_PRESET)
    return [
        Preset(name="two-stages", path=folder / "two.yaml", summary="SFT, then GRPO"),
        Preset(name="acme/big", path=folder / "model.yaml", summary="a model", kind="model"),
    ]


@pytest.fixture
def app(presets: list[Preset]) -> Forge:
    """The kernel, a runtime, ``forge config`` and the world above, nothing else."""
    return Forge([forge_config.plugin, forge_local.plugin, World(presets)], discover=False)


@pytest.fixture
def catalog(app: Forge) -> Catalog:
    return app.plugins.catalog


@pytest.fixture(scope="session")
def components() -> Catalog:
    """The same components without presets, for properties that are tried many times."""
    return Forge([forge_local.plugin, World()], discover=False).plugins.catalog


@pytest.fixture
def read(catalog: Catalog) -> Callable[..., RunConfig]:
    """``read(source, *overrides, **environ)``: resolve without this process's environment."""

    def call(source: Any = None, *overrides: str, **environ: str) -> RunConfig:
        return resolve(catalog, source, overrides, environ=environ)

    return call


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """``write("a.yaml", text)``: a file in the current folder, which is this test's own."""
    monkeypatch.chdir(tmp_path)

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return Path(name)

    return put
