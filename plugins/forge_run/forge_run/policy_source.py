"""Which weights, which generator and which sampling: from what a person named."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import BuildContext, RunConfig, Sampling, Selection, StageConfig, UsageError
from forge_core.config.effective import stage_tree
from forge_core.config.in_force import CONFIG, config_in_force
from forge_core.config.layers import SECTIONS
from forge_core.config.resolve import resolve
from forge_core.config.sources import ENVIRONMENT_PREFIX
from forge_core.config.tree import plain
from forge_core.config.yaml_source import load_file
from forge_core.manifest import verify_model
from forge_run.checkpoint import CheckpointStore
from forge_run.folder import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import Forge, Generator, Runtime

_USED = ("generator", "sampling", "runtime")
"""Sections of a config that count here, beside the model's keys below."""

_MODEL_KEYS = ("dtype", "trust_remote_code", "allow_pickle")
"""What can be said of the model on the command line. What a folder may do is not taken from a run:
its config comes with the folder."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class PolicySource:
    """A model folder, and the config to sample from it with.

    Args:
        model: folder in Hugging Face layout.
        step: of the run that the weights are a checkpoint of; None for any other model.
        stage: the config: of the stage that wrote the checkpoint, else the defaults.
        runtime: where replicas live.
        warnings: newer checkpoints that were skipped because they are damaged, one line each.
    """

    model: Path
    step: int | None
    stage: StageConfig
    runtime: Selection[Runtime]
    warnings: tuple[str, ...] = ()

    @property
    def generator(self) -> Selection[Generator]:
        """The generator to sample with.

        Raises:
            UsageError: there is none.
        """
        if self.stage.generator is None:
            raise UsageError("generator.use: no generator is installed")
        return self.stage.generator

    @property
    def context(self) -> BuildContext:
        """What the generator is built with: no transport, for the weights stay as they are."""
        section = self.stage.model.model_copy(update={"path": self.model, "init": None})
        return replace(self.stage.early_context(), model=section)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from forge_models.folder import check_folder, load_tokenizer

        section = self.stage.model
        check_folder(
            self.model,
            trust_remote_code=section.trust_remote_code,
            allow_pickle=section.allow_pickle,
        )
        return load_tokenizer(self.model, trust_remote_code=section.trust_remote_code)

    def sampling(self, *, n: int = 1, seed: int | None = None) -> Sampling:
        """The config's ``sampling`` section with the model's stop tokens."""
        from forge_models.stop_tokens import stop_token_ids

        stops = stop_token_ids(self.model, self.tokenizer)
        return Sampling(**dict(self.stage.sampling), stop_token_ids=stops, n=n, seed=seed)


def find_policy(
    app: Forge,
    name: str,
    overrides: Sequence[str] = (),
    *,
    step: int | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> PolicySource:
    """What a person means by a model folder, a run folder or one of its checkpoints.

    A run, and a checkpoint in its folder, brings its own config with it: the generator, dtype and
    sampling it ran with. Any other model has the defaults.

    Args:
        app: where components come from.
        name: path of the folder.
        overrides: ``key=value`` on top.
        step: checkpoint of a run folder; None: its newest.
        defaults: sections beneath the overrides, for a model that has no run's config.

    Raises:
        UsageError: there is no such folder, or it holds neither a model nor a checkpoint.
        DataError: what was named is damaged, or every checkpoint of the run is.
        ConfigError: the config with the overrides is wrong.
    """
    for override in overrides:
        words = override.partition("=")[0].split(".")
        if words[0] == "model" and not _of_model(words):
            raise UsageError(f"{override}: the model is what was named first, {name}")
        if not _counts(words):
            allowed = ", ".join([*_USED, *(f"model.{key}" for key in _MODEL_KEYS)])
            raise UsageError(f"{override}: only {allowed} count here")
    path = Path(name).expanduser()
    if not path.is_dir():
        raise UsageError(f"{name}: {_absent(path, name)}")
    if (path / CONFIG).is_file():
        at, warnings = _checkpoint(path, step)
        source = _of_run(app, path, at, _store(path).path(at), overrides)
        return replace(source, warnings=warnings)
    if step is not None:
        raise UsageError(f"--step {step}: {name} is no run folder; only those have steps")
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{name}: neither a model folder (with config.json) nor a run folder (with {CONFIG})"
        )
    if (found := _run_and_step(path.absolute())) is not None:
        _store(found[0]).verify(found[1], model_only=True)
        return _of_run(app, *found, path, overrides)
    verify_model(path)
    config = _resolve(app, {**(defaults or {}), "model": {"path": str(path)}}, overrides)
    return PolicySource(path, None, config.stages[0], config.runtime)


def _of_run(
    app: Forge, run: Path, step: int, model: Path, overrides: Sequence[str]
) -> PolicySource:
    """With what the run's config says of sampling in the checkpoint's stage. The rest is not looked
    at, so that a run can be asked where its dataset, rewards or trainer are not installed."""
    name = _store(run).state(step).stage
    tree = stage_tree(plain(load_file(config_in_force(run), "file", os.environ)), name)
    sections = {section: tree[section] for section in _USED if section in tree}
    dtype = {key: value for key, value in tree.get("model", {}).items() if key == "dtype"}
    config = _resolve(app, {**sections, "model": {**dtype, "path": str(model)}}, overrides)
    # The command line or the environment may speak of stages.
    stage = next((stage for stage in config.stages if stage.name == name), config.stages[0])
    return PolicySource(model, step, stage, config.runtime)


def _resolve(app: Forge, sections: Mapping[str, Any], overrides: Sequence[str]) -> RunConfig:
    """The config, without what the environment says of sections that do not count."""
    environ = dict(os.environ)
    for variable in os.environ:
        if variable.startswith(ENVIRONMENT_PREFIX):
            words = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            if not _counts(words):
                del environ[variable]
    return resolve(app.plugins.catalog, sections, overrides, environ=environ)


def _counts(words: Sequence[str]) -> bool:
    """Whether a key counts, also below ``stages.NAME``. What is no section the parser refuses."""
    if words[0] == "stages":
        words = words[2:]
    return not words or words[0] in _USED or words[0] not in SECTIONS or _of_model(words)


def _of_model(words: Sequence[str]) -> bool:
    return len(words) == 2 and words[0] == "model" and words[1] in _MODEL_KEYS


def _absent(path: Path, name: str) -> str:
    if path.exists():
        return "a file; name a model folder, a run folder or one of its checkpoints"
    if _HUB_NAME.fullmatch(name) and not path.parent.exists():
        return (
            "no such folder; a model of a hub has to be downloaded first "
            f"(hf download {name} --local-dir DIR)"
        )
    return "no such folder"


def _store(run: Path) -> CheckpointStore:
    return CheckpointStore(RunFolder(run).checkpoints, keep=1)


def _checkpoint(run: Path, step: int | None) -> tuple[int, tuple[str, ...]]:
    """The step that is named, else the newest that is whole; and what is wrong with newer ones."""
    store = _store(run)
    steps = store.steps()
    if not steps:
        raise UsageError(f"{run}: this run has no checkpoint yet")
    if step is None:
        newest, damaged = store.newest_whole(model_only=True)
        assert newest is not None
        return newest, tuple(f"{line}; using step {newest} instead" for line in damaged.values())
    if step not in steps:
        raise UsageError(
            f"--step {step}: {run} has no such checkpoint (it has: {', '.join(map(str, steps))})"
        )
    store.verify(step, model_only=True)
    return step, ()


def _run_and_step(folder: Path) -> tuple[Path, int] | None:
    """The run whose checkpoint a folder is."""
    run = folder.parent.parent
    if folder.parent.name != "checkpoints" or not (run / CONFIG).is_file():
        return None
    store = _store(run)
    return next(((run, step) for step in store.steps() if store.path(step) == folder), None)
