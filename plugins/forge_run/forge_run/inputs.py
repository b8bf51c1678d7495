"""What a stage's recipe works with in the controller's process: data, environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import RunFailed, Sampling, Task, UsageError
from forge_core.contracts.blame import blaming
from forge_models.stop_tokens import stop_token_ids
from forge_run.answers import check_advantages
from forge_run.data.order import TaskOrder
from forge_run.environment import GuardedEnvironment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import AdvantageEstimator, BuildContext, Selection, StageConfig
    from forge_run.dataset import GuardedDataset
    from forge_run.session import RunSession


class Inputs:
    """Each is made when it is first asked for.

    Args:
        session: the run that the stage belongs to.
        config: of the stage.
        context: what components are built with.
        model: folder with the weights that the stage starts from.
        position: tasks that were taken before, by an earlier process.
    """

    def __init__(
        self,
        session: RunSession,
        config: StageConfig,
        context: BuildContext,
        *,
        model: Path,
        position: int,
    ) -> None:
        self._session = session
        self._config = config
        self._context = context
        self._model = model
        self._position = position
        self._components: dict[str, Any] = {}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from forge_models.folder import load_tokenizer

        trust = self._config.model.trust_remote_code
        return load_tokenizer(self._model, trust_remote_code=trust)

    @cached_property
    def dataset(self) -> GuardedDataset:
        return self._session.dataset(self._config, "dataset")

    @cached_property
    def eval_dataset(self) -> GuardedDataset:
        return self._session.dataset(self._config, "eval_dataset")

    @cached_property
    def tasks(self) -> TaskOrder:
        return TaskOrder(len(self.dataset), self._context.seed, position=self._position)

    @property
    def position(self) -> int:
        """Tasks taken so far; 0 for a stage without a dataset."""
        return self.tasks.position if self._config.dataset is not None else 0

    def go_back(self, position: int) -> None:
        """Count tasks from that place on as not taken."""
        if self._config.dataset is not None:
            self.tasks.position = position

    @property
    def dropped(self) -> int:
        """Items of the dataset that could not be read and were left out."""
        return self.dataset.dropped if self._config.dataset is not None else 0

    @cached_property
    def environment(self) -> GuardedEnvironment:
        assert self._config.environment is not None
        with blaming(self._config.environment, "build", RunFailed):
            built = self._config.environment.build(self._context)
        return GuardedEnvironment(
            self._config.environment,
            self._config.environment_keys,
            built,
            waiting=self._session.waiting,
            on_event=self._session.events.event,
        )

    @property
    def has_played(self) -> bool:
        """Whether the environment was asked for."""
        return "environment" in self.__dict__

    def task_at(self, place: int) -> Task:
        return self.dataset[self.tasks.at(place)]

    def take(self, count: int) -> list[Task]:
        return [self.dataset[index] for index in self.tasks.take(count)]

    def sampling(self, **changes: Any) -> Sampling:
        """The config's ``sampling`` section with the model's stop tokens."""
        section = self._config.sampling
        base = Sampling(
            max_tokens=section.max_tokens,
            temperature=section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            stop=section.stop,
            stop_token_ids=stop_token_ids(self._model, self.tokenizer),
        )
        return replace(base, **changes)

    @cached_property
    def _estimator(self) -> AdvantageEstimator:
        chosen = self._config.advantage
        if chosen is None:
            raise UsageError(f"advantage: recipe {self._config.recipe.name!r} needs this section")
        with blaming(chosen, "build", RunFailed):
            return chosen.build(self._context)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """What the config's estimator says of a group's rewards."""
        estimator, chosen = self._estimator, self._config.advantage
        assert chosen is not None
        with blaming(chosen, "the call", RunFailed):
            answer = estimator(list(rewards))
        return check_advantages(chosen, rewards, answer)

    def component(self, section: str) -> Any:
        """The component of a section that a plugin has added, built in this process."""
        if section not in self._components:
            chosen = selected(self._config, section)
            with blaming(chosen, "build", RunFailed):
                self._components[section] = chosen.build(self._context)
        return self._components[section]


def selected(config: StageConfig, section: str) -> Selection[Any]:
    """What the config selects in a section that a plugin has added.

    Raises:
        UsageError: nothing.
    """
    chosen = config.sections[section].selection
    if chosen is None:
        raise UsageError(f"{section}: recipe {config.recipe.name!r} needs this section")
    return chosen
