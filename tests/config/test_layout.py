"""What is the default because of where trainer and generator live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest

import forge_local.plugin
from forge_core import (
    BuildContext,
    Forge,
    GeneratorComponent,
    Location,
    Placement,
    RecipeComponent,
    RunConfig,
    RuntimeComponent,
    Settings,
    TrainerComponent,
    TransportComponent,
    hookimpl,
)
from forge_core.config.resolve import resolve
from forge_testing.context import component


class Device(Settings):
    """Where its weights are, as a component's settings would say it."""

    device: Literal["cpu", "cuda"] = "cpu"
    engine: bool = False
    serve: bool = False


def location(settings: Device) -> Location:
    return Location(
        cuda=settings.device == "cuda", own_process=settings.engine, isolate=settings.serve
    )


def build(settings: Settings, context: BuildContext) -> Settings:
    return settings


class TwoHosts(Settings):
    same_machine: bool = False


def hosts(settings: TwoHosts, service: str, placement: Placement) -> dict[str, str]:
    machine = "one" if settings.same_machine or service == "trainer" else "other"
    return {f"{service}-host": machine}


class World:
    @hookimpl
    def forge_generators(self) -> Iterator[GeneratorComponent]:
        yield GeneratorComponent(
            name="torch",
            settings=Device,
            build=build,
            location=location,
            summary="somewhere",
            default=True,
        )
        yield GeneratorComponent(
            name="plain", settings=Settings, build=build, summary="says nothing"
        )

    @hookimpl
    def forge_trainers(self) -> Iterator[TrainerComponent]:
        yield TrainerComponent(
            name="torch",
            settings=Device,
            build=build,
            location=location,
            summary="somewhere",
            default=True,
        )

    @hookimpl
    def forge_transports(self) -> Iterator[TransportComponent]:
        for name, reach in (("shm", "host"), ("memory", "process"), ("ipc", "host")):
            yield component(
                "transport",
                build,
                name=name,
                reach=reach,
                cuda_only=name == "ipc",
                default=True,
            )
        yield component(
            "transport", build, name="wide", reach="cluster", fabric="mesh", default=True
        )

    @hookimpl
    def forge_runtimes(self) -> Iterator[RuntimeComponent]:
        yield RuntimeComponent(name="cluster", settings=Settings, build=build, summary="processes")
        yield RuntimeComponent(
            name="two_hosts",
            settings=TwoHosts,
            build=build,
            summary="the generator on another host than the trainer",
            hosts=hosts,
            fabric="mesh",
        )

    @hookimpl
    def forge_recipes(self) -> Iterator[RecipeComponent]:
        yield RecipeComponent(
            name="sft", settings=Settings, build=build, summary="imitation", default=True
        )


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    catalog = Forge([forge_local.plugin, World()], discover=False).plugins.catalog

    def call(*overrides: str) -> RunConfig:
        return resolve(catalog, None, overrides, environ={})

    return call


@pytest.mark.parametrize(
    ("overrides", "transport"),
    [
        # In one process.
        ([], "memory"),
        (["trainer.device=cuda", "generator.device=cuda"], "memory"),
        # In several, of one host.
        (["generator.isolate=true"], "shm"),
        (["generator.engine=true"], "shm"),
        (["generator.serve=true"], "shm"),
        (["generator.serve=true", "generator.isolate=false"], "memory"),
        (["trainer.procs=2", "trainer.device=cuda"], "shm"),
        (["generator.engine=true", "generator.device=cuda"], "shm"),
        # On its GPUs.
        (["trainer.device=cuda", "generator.device=cuda", "generator.engine=true"], "ipc"),
        (["trainer.device=cuda", "generator.device=cuda", "generator.with_gpus=true"], "ipc"),
        (["trainer.device=cuda", "generator.use=plain", "generator.with_gpus=true"], "shm"),
        # Of several hosts.
        (["runtime.use=cluster", "trainer.device=cuda", "generator.device=cuda"], "shm"),
        (["runtime.use=two_hosts"], "wide"),
        (["runtime.use=two_hosts", "runtime.same_machine=true"], "shm"),
        # The config's word counts.
        (
            [
                "trainer.device=cuda",
                "generator.device=cuda",
                "generator.engine=true",
                "transport.use=shm",
            ],
            "shm",
        ),
    ],
)
def test_the_transport_that_reaches_both_ends(
    config: Callable[..., RunConfig], overrides: list[str], transport: str
) -> None:
    chosen = config(*overrides).stages[0].transport
    assert chosen is not None
    assert chosen.name == transport


def test_a_component_can_ask_for_a_process_of_its_own(config: Callable[..., RunConfig]) -> None:
    def isolated(*overrides: str) -> bool:
        return config(*overrides).stages[0].generator_placement.isolate

    assert not isolated()
    assert isolated("generator.serve=true")
    assert not isolated("generator.serve=true", "generator.isolate=false")
    resolved = config("generator.serve=true")
    assert resolved.tree["generator"]["isolate"] is True
    assert resolved.provenance["generator.isolate"].layer == "default"
