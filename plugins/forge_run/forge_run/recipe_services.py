"""The services that a recipe has of its own: what they are built with, started, restored, saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import DataError, RecipeService, ServiceOptions, derive_seed
from forge_run.checkpoint import SERVICES

if TYPE_CHECKING:
    from forge_core import BuildContext, StageConfig
    from forge_run.running import Running
    from forge_run.session import RunSession
    from forge_services.service import Service


def channel_of(stage: str, publisher: str) -> str:
    """Where a trainer and the generators that take weights from it meet.

    Args:
        stage: channel of the stage's own trainer.
        publisher: name of the trainer.
    """
    return stage if publisher in ("", "trainer") else f"{stage}-{publisher}"


class RecipeServices:
    """Those that the recipe of a stage declares.

    Args:
        session: the run that the stage belongs to.
        config: of the stage.
        context: what the stage's components are built with.
        running: the stage's services that were started.
        checkpoint: says where an earlier process has left the stage.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        context: BuildContext,
        running: Running,
        checkpoint: Callable[[], Path | None],
    ) -> None:
        self._session = session
        self._config = config
        self._context = context
        self._running = running
        self._checkpoint = checkpoint
        self.declared = config.services()
        """By name."""

    async def service(self, name: str) -> Service:
        """One of them, with the checkpoint's state after a resume.

        Raises:
            DataError: the checkpoint has no state of it.
        """
        if name in self._running:
            return self._running[name]
        declared, context = self.declared[name], self.context_of(name)
        selection = self._config.service_selection(declared)
        assert selection is not None  # checked before the start
        service = await self._running.start(
            name,
            selection,
            context,
            self._config.service_placement(declared),
            declared.options or self._options_of(declared, selection.family),
        )
        if declared.loss is not None and "reference_logprobs" in declared.loss.needs:
            await service.hold_reference.route()
        if declared.checkpoint and (checkpoint := self._checkpoint()) is not None:
            saved = checkpoint / SERVICES / name
            if not saved.is_dir():
                raise DataError(
                    f"{checkpoint}: has no state of service {name!r}, which recipe "
                    f"{self._config.recipe.name!r} keeps in checkpoints; it was written by another "
                    "version of the recipe, or with other settings"
                )
            await service.load.route(saved)
        return service

    def _options_of(self, declared: RecipeService, family: str) -> ServiceOptions:
        if declared.section == "generator":
            return self._config.generator_options
        if declared.section in self._config.sections:
            return self._config.sections[declared.section].options
        one_call = 1 if family == "trainer" else ServiceOptions.concurrency
        # What it has learned cannot be made again where the process is gone.
        return ServiceOptions(retry=not declared.checkpoint, concurrency=one_call)

    def context_of(self, name: str) -> BuildContext:
        """What a service of the recipe's own, or the stage's trainer, is built with."""
        if name not in self.declared:
            return self._context
        declared = self.declared[name]
        publisher = declared.weights_from or (name if name in self.publishers() else "")
        training = self._context.training.model_copy(update=dict(declared.training))
        return replace(
            self._context,
            model=self._session.model(declared.model, self._context.model),
            training=training,
            seed=derive_seed(self._context.seed, "service", name),
            loss=declared.loss,
            transport=self._config.transport if publisher else None,
            channel=channel_of(self._context.channel, publisher),
        )

    def publishers(self) -> list[str]:
        """The trainers that generators take weights from: the stage's, then those of its recipe."""
        named = (
            declared.weights_from for declared in self.declared.values() if declared.weights_from
        )
        return list(dict.fromkeys(["trainer", *named]))

    def generators_of(self, publisher: str) -> list[str]:
        """Those of them that take weights from a trainer."""
        return [name for name, each in self.declared.items() if each.weights_from == publisher]

    def kept(self) -> list[str]:
        """Those of them whose state is in checkpoints."""
        return [name for name, each in self.declared.items() if each.checkpoint]

    async def save(self, folder: Path) -> None:
        """Write into a checkpoint what they keep."""
        for name in self.kept():
            place = folder / SERVICES / name
            place.mkdir(parents=True)
            await (await self.service(name)).save.route(place)
