"""What a resumed run may change, what it keeps, and what it refuses.

A change holds from the first step after the resume, or it is refused, or it is left out with a
warning: the config that is recorded is the one that holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import DataError, RunConfig, UsageError
from forge_core.config.effective import effective_tree, stage_tree
from forge_core.config.resolve import resolve
from forge_core.config.yaml_source import dump_inline
from forge_core.sections import RUN_WIDE
from forge_run.code_files import changed_files, check_files

if TYPE_CHECKING:
    from forge_core import ModelSection
    from forge_core.plugins.catalog import Catalog
    from forge_run.checkpoint import CheckpointStore, RunState
    from forge_run.folder import RunFolder

_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A run that goes on.

    Args:
        folder: of the run.
        state: of the checkpoint it goes on from; None: it begins again.
        recorded: the config in force until now.
        config: what holds from now on.
        at: index of the checkpoint's stage.
        finished: steps of the stages before it, as far as they are known.
        warnings: changes that do not hold, or not in all, one line each.
    """

    folder: RunFolder
    state: RunState | None
    recorded: RunConfig
    config: RunConfig
    at: int
    finished: Mapping[str, int]
    warnings: Sequence[str]

    def settled(self, totals: Sequence[int]) -> tuple[Resumption, list[int]]:
        """With the number of steps of each stage, as planned for ``config``.

        Returns:
            the same, without changes to a stage that has nothing left to do, and the steps of each
            stage: those that finished stages have done.

        Raises:
            UsageError: a stage has done more steps than it shall have.
        """
        totals = [
            self.finished.get(stage.name, total)
            for stage, total in zip(self.config.stages, totals, strict=True)
        ]
        state, at = self.state, self.at
        if state is None:
            return self, totals
        if totals[at] < state.stage_step:
            raise UsageError(
                f"training: stage {state.stage!r} would have {totals[at]} steps, and has done "
                f"{state.stage_step} already; a resumed run can only be given more"
            )
        if not (state.stage_done and totals[at] == state.stage_step):
            return self, totals
        config, warnings = _keep_stages(self.recorded, self.config, [at])
        return replace(self, config=config, warnings=[*self.warnings, *warnings]), totals

    def changes(self) -> list[str]:
        """What is other than before, one line for each key."""
        lines: dict[str, None] = {}
        for stage in self.config.stages:
            prefix = f"{stage.name}: " if "stages" in self.config.tree else ""
            if stage.name not in {known.name for known in self.recorded.stages}:
                lines[f"{stage.name}: a new stage"] = None
                continue
            for key, (old, new) in _changes(self.recorded, self.config, stage.name).items():
                place = "" if key.partition(".")[0] in RUN_WIDE else prefix
                lines[f"{place}{key}: {_shown(old)} -> {_shown(new)}"] = None
        return list(lines)


def last_known_state(store: CheckpointStore) -> RunState | None:
    """How far a run is, by its newest readable checkpoint; weights are not read."""
    for step in reversed(store.steps()):
        with contextlib.suppress(DataError):
            return store.state(step)
    return None


def finished_stages(store: CheckpointStore) -> dict[str, int]:
    """Steps of each stage that has ended: its last checkpoint is kept."""
    found = {}
    for step in store.steps():
        with contextlib.suppress(DataError):
            state = store.state(step)
            if state.stage_done:
                found[state.stage] = state.stage_step
    return found


def resumption(
    folder: RunFolder,
    given: RunConfig,
    state: RunState | None,
    finished: Mapping[str, int],
    *,
    catalog: Catalog,
) -> Resumption:
    """Compare the config that a run shall go on with to the one in force.

    Args:
        folder: of the run.
        given: what the person wants.
        state: of the newest checkpoint.
        finished: steps of the stages that have ended.
        catalog: to read the config in force.

    Raises:
        UsageError: a change that cannot hold; names its key.
        ConfigError: the config in force is damaged, or cannot be read with what is installed.
    """
    check_files(folder.path)
    recorded = resolve(catalog, folder.config, environ={})
    config, warnings = _keep_folder(folder, recorded, given)
    warnings += changed_files(folder.path, config)
    _check_model(folder, recorded, config, begun=state is not None)
    if state is None:
        return Resumption(
            folder=folder,
            state=None,
            recorded=recorded,
            config=config,
            at=0,
            finished={},
            warnings=warnings,
        )
    at = _check_stages(folder, recorded, config, state)
    before = [stage.name for stage in recorded.stages[:at]]
    _check_begun(recorded, config, state.stage)
    warnings += _data_warnings(recorded, config, state)
    config, ignored = _keep_stages(recorded, config, range(at))
    return Resumption(
        folder=folder,
        state=state,
        recorded=recorded,
        config=config,
        at=at,
        finished={name: finished[name] for name in before if name in finished},
        warnings=[*warnings, *ignored],
    )


def _keep_folder(
    folder: RunFolder, recorded: RunConfig, given: RunConfig
) -> tuple[RunConfig, list[str]]:
    """With the keys that say where the folder is as they were; a warning for each other one."""
    old, new = _flat(recorded.tree), _flat(given.tree)
    warnings = [
        f"{key}={_shown(new.get(key))}: does nothing, the run goes on in {folder.path}"
        for key in ("name", "checkpointing.output_dir")
        if new.get(key) != old.get(key)
    ]
    section = dict(given.tree["checkpointing"])
    section |= {key: recorded.tree["checkpointing"][key] for key in ("output_dir", "resume")}
    tree = {**given.tree, "name": recorded.name, "checkpointing": section}
    places = {
        "output_dir": recorded.checkpointing.output_dir,
        "resume": recorded.checkpointing.resume,
    }
    checkpointing = given.checkpointing.model_copy(update=places)
    kept = replace(given, name=recorded.name, checkpointing=checkpointing, tree=tree)
    return kept, warnings


def _check_model(folder: RunFolder, recorded: RunConfig, config: RunConfig, *, begun: bool) -> None:
    """The weights that a run goes on with are its own, whatever the config says.

    Raises:
        UsageError: the config names another model than the one the run began with.
    """
    for name, model in recorded.models.items():
        if (folder.models / name / "config.json").is_file() and config.models.get(name) != model:
            raise UsageError(
                f"models.{name}: {folder.path} has made this model and goes on with it; another "
                "one needs a run of its own"
            )
    old, new = recorded.model, config.model
    if old.init is not None:
        made = (folder.model / "config.json").is_file()
        if made and new.init != old.init:
            raise UsageError(
                f"model: {folder.path} has made its model from model.init and goes on with it; "
                "another model needs a run of its own"
            )
        seeds = [each.stages[0].training.seed for each in (recorded, config)]
        if made and not begun and old.init.seed is None and seeds[0] != seeds[1]:
            raise UsageError(
                f"training.seed={seeds[1]}: {folder.path} has made its model from {seeds[0]} and "
                "goes on with it; another one needs a run of its own"
            )
        return
    if not begun or (new.path, new.name, new.init) == (old.path, old.name, None):
        return
    source = _source(old)
    if new.init is not None or source is None or source.exists():
        raise UsageError(
            f"model: {folder.path} goes on with the weights of its checkpoint, which began from "
            f"{source or old.name}; another model needs a run of its own"
        )


def _source(model: ModelSection) -> Path | None:
    return model.path or (Path(model.name) if model.name else None)


def _check_stages(
    folder: RunFolder, recorded: RunConfig, config: RunConfig, state: RunState
) -> int:
    """Index of the stage that the checkpoint was taken in.

    Raises:
        UsageError: the stages up to it are not those that were run.
    """
    names = [stage.name for stage in config.stages]
    were = [stage.name for stage in recorded.stages]
    if state.stage not in names:
        raise UsageError(
            f"{folder.path} is in stage {state.stage!r}, which the config does not "
            f"have (it has: {', '.join(names)})"
        )
    if state.stage not in were:
        raise UsageError(
            f"{folder.path} is in stage {state.stage!r}, which its own config does not have "
            f"({folder.config} has: {', '.join(were)})"
        )
    at = were.index(state.stage)
    if names[: at + 1] != were[: at + 1]:
        raise UsageError(
            f"stages: {folder.path} has run {', '.join(were[: at + 1])}; the config must begin "
            f"with these stages (it has: {', '.join(names)})"
        )
    return at


def _check_begun(recorded: RunConfig, config: RunConfig, stage: str) -> None:
    """Refuse what would take hold in a part of a stage that has begun.

    Raises:
        UsageError: names the key.
    """
    changes = _changes(recorded, config, stage)
    for key, reason in (
        ("training.seed", "the order of tasks and the samples so far come from it"),
        ("recipe.use", "the checkpoint holds the state of the recipe that wrote it"),
    ):
        if key in changes:
            old, new = changes[key]
            raise UsageError(
                f"{key}={_shown(new)}: stage {stage!r} has begun with {_shown(old)}, and {reason}; "
                "another one needs a run of its own"
            )


def _data_warnings(recorded: RunConfig, config: RunConfig, state: RunState) -> list[str]:
    keys = [
        key for key in _changes(recorded, config, state.stage) if key.partition(".")[0] == "dataset"
    ]
    if not keys or state.stage_done:
        return []
    return [
        f"{_listed(keys)}: stage {state.stage!r} goes on at task {state.position} of the new data; "
        "that what it was trained on before does not come again holds for the same data only"
    ]


def _keep_stages(
    recorded: RunConfig, config: RunConfig, indexes: Sequence[int]
) -> tuple[RunConfig, list[str]]:
    """With stages that are done as they were, and a warning for each that would be another one."""
    stages, warnings = list(config.stages), []
    for index in indexes:
        name = stages[index].name
        changed = [
            key for key in _changes(recorded, config, name) if key.partition(".")[0] not in RUN_WIDE
        ]
        if changed:
            warnings.append(f"{_listed(changed)}: stage {name!r} is done, this does nothing in it")
            stages[index] = replace(recorded.stages[index], model=config.model)
    if not warnings:
        return config, []
    named = "stages" in config.tree
    sections = [
        (
            stage.name if named else None,
            _stage_sections((recorded if stage is not given else config).tree, stage.name),
        )
        for stage, given in zip(stages, config.stages, strict=True)
    ]
    run = {key: value for key, value in config.tree.items() if key in RUN_WIDE}
    tree = effective_tree(config.name, run, sections)
    return replace(config, stages=tuple(stages), tree=tree), warnings


def _stage_sections(tree: Mapping[str, Any], stage: str) -> dict[str, Any]:
    alone = stage_tree(tree, stage)
    return {key: value for key, value in alone.items() if key not in (*RUN_WIDE, "name")}


def _changes(recorded: RunConfig, config: RunConfig, stage: str) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> value before and now, of the sections that a stage sees."""
    old, new = (_flat(stage_tree(each.tree, stage)) for each in (recorded, config))
    return {
        key: (old.get(key), new.get(key))
        for key in {**old, **new}
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    }


_ABSENT: Any = object()


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _shown(value: Any) -> str:
    return dump_inline(value)


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return ", ".join(keys[:_MOST_NAMED]) + more
