"""What a recipe drives: one stage of a run.

The kernel does here what every recipe would have to repeat, a module for each: data and environment
(``inputs``), services (``parts``), the weight handshake (``publishing``), steps, checkpoints,
evaluation and stopping (``loop``). A recipe is left with its algorithm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import Episode, Sampling, Step, Task, TrainSequence, UsageError
from forge_run.evaluation import evaluate
from forge_run.inputs import Inputs
from forge_run.loop import Loop, Moment
from forge_run.parts import Parts
from forge_run.publishing import Publishing
from forge_services.service import Service

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import Evaluation, FloatArray, Recipe, RolloutOptions, StageConfig, Transport
    from forge_rollouts.rollouts import Rollouts
    from forge_run.checkpoint import RunState
    from forge_run.dataset import GuardedDataset
    from forge_run.environment import GuardedEnvironment
    from forge_run.session import RunSession


class Stage:
    """Implements ``forge_core.RecipeContext``, which documents what a recipe may use.

    Args:
        session: the run it belongs to.
        config: this stage's sections.
        model: folder with the weights the stage starts from.
        total_steps: the target.
        restored: where to go on, when the stage was begun by an earlier process.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        *,
        model: Path,
        total_steps: int,
        restored: RunState | None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.total_steps = total_steps
        self.model = model
        self._session = session
        # The learning-rate schedule ends where the stage does, however its length was given.
        training = config.training.model_copy(update={"steps": total_steps, "num_epochs": None})
        self.context = replace(
            config.early_context(),
            model=config.model.model_copy(update={"path": model, "init": None}),
            training=training,
            channel=session.folder.channel(config.name),
            loss=config.loss,
            transport=config.transport,
            services=config.placements(),
            logs=session.folder.logs,
        )
        self.seed = self.context.seed
        position = restored.position if restored else 0
        self._inputs = Inputs(session, config, self.context, model=model, position=position)
        self._parts = Parts(session, config, self.context, self._inputs, restored)
        versions: dict[str, int] = {}
        if restored is not None and restored.stage_step > 0:
            versions = {"trainer": restored.version, **restored.versions}
        self._publishing = {
            name: Publishing(
                # Publishing again gives the replicas the version they had.
                version=max(-1, versions.get(name, -1) - 1),
                selection=config.transport,
                transport=partial(self._transport, name),
                warn=self.warn,
            )
            for name in self._parts.own.publishers()
        }
        self._loop = Loop(
            session,
            config,
            total_steps=total_steps,
            inputs=self._inputs,
            parts=self._parts,
            publishing=self._publishing,
            restored=restored,
            evaluate=self._evaluate,
        )

    # Data.

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._inputs.tokenizer

    @property
    def dataset(self) -> GuardedDataset:
        return self._inputs.dataset

    @property
    def eval_dataset(self) -> GuardedDataset:
        return self._inputs.eval_dataset

    @property
    def environment(self) -> GuardedEnvironment:
        return self._inputs.environment

    @property
    def position(self) -> int:
        return self._inputs.position

    def take(self, count: int) -> list[Task]:
        return self._inputs.take(count)

    def task_at(self, place: int) -> Task:
        return self._inputs.task_at(place)

    def advance(self, count: int) -> None:
        self._inputs.tasks.take(count)

    def sampling(self, **changes: Any) -> Sampling:
        return self._inputs.sampling(**changes)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return self._inputs.advantages(rewards)

    def component(self, section: str) -> Any:
        return self._inputs.component(section)

    # Services.

    async def trainer(self) -> Service:
        return await self._parts.trainer()

    async def generator(self) -> Service:
        generator = await self._parts.generator()
        if not self._publishing["trainer"].has_published:
            await self.publish()
        return generator

    async def reference_logprobs(
        self, sequences: Sequence[TrainSequence], *, temperature: float = 1.0
    ) -> list[FloatArray]:
        return await self._parts.reference_logprobs(sequences, temperature)

    def rollouts(self, options: RolloutOptions) -> AbstractAsyncContextManager[Rollouts]:
        return self._parts.rollouts(self, options)

    async def replay_buffer(self, max_staleness: int) -> Service:
        return await self._parts.replay_buffer(max_staleness)

    async def service(self, name: str) -> Service:
        own = self._parts.own
        if name not in own.declared:
            return await self._parts.section(name)
        service = await own.service(name)
        publisher = own.declared[name].weights_from
        if publisher and not self._publishing[publisher].has_published:
            await self.publish(publisher)
        return service

    async def score(self, episodes: Sequence[Episode], *, held_out: bool = False) -> None:
        await self._parts.score(episodes)
        for episode in episodes:
            self._session.events.episode(episode, held_out=held_out)

    # Weights.

    @property
    def version(self) -> int:
        return self._publishing["trainer"].version

    @property
    def versions(self) -> Mapping[str, int]:
        return {name: publishing.version for name, publishing in self._publishing.items()}

    async def publish(self, trainer: str = "trainer") -> int:
        if trainer not in self._publishing:
            raise UsageError(
                f"recipe {self.config.recipe.name!r}: publishes {trainer!r}, from which no "
                f"generator takes weights (these are taken from: {', '.join(self._publishing)})"
            )
        publishing = self._publishing[trainer]
        source = await self._parts.publisher(trainer)
        generators = await self._parts.generators_of(trainer)
        first = not publishing.has_published
        version = await publishing.send(source, generators)
        if first and trainer == "trainer":
            await self._parts.open_addresses()
        return version

    def _transport(self, trainer: str) -> Transport:
        return self._session.transport(self.config, self._parts.own.context_of(trainer))

    # The course of the stage.

    @property
    def recipe_state(self) -> dict[str, Any]:
        return self._loop.recipe_state

    @recipe_state.setter
    def recipe_state(self, state: dict[str, Any]) -> None:
        self._loop.recipe_state = state

    def steps(self) -> AsyncIterator[Step]:
        return self._loop.steps()

    def warn(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._session.events.event("warning", message, data)

    def waiting(self, what: str, detail: str = "") -> AbstractContextManager[None]:
        return self._session.waiting(what, detail)

    async def _evaluate(self, moment: Moment, step: int) -> Evaluation:
        await self.publish()
        return await evaluate(self, moment, step)

    # For the session.

    async def drive(self, recipe: Recipe) -> None:
        """Run the recipe to its end, and make sure that the target was reached.

        Raises:
            RunInterrupted: a signal asked for it; there is a checkpoint of the last whole step.
            RunStopped: the recipe ended short of its target.
        """
        await self._loop.drive(lambda: recipe.run(self))
        self._loop.check_finished()

    def stop_soon(self) -> None:
        """Give the step under way up unless it ends soon by itself."""
        self._loop.stop_soon()

    async def close(self) -> None:
        """Give everything back, whatever state it is in; the first failure is raised at the end."""
        await self._parts.close()
