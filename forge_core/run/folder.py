"""The run folder: everything a run leaves behind, in one place."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import socket
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from forge_core.config.sections import ModelSection
from forge_core.errors import UsageError

if TYPE_CHECKING:
    from forge_core.config.resolve import RunConfig
    from forge_core.plugins.manager import PluginManager
    from forge_core.run.records import Summary

CONFIG = "config.yaml"
LOCK = "run.lock"
SUMMARY = "summary.json"


class RunFolder:
    """``config.yaml``, ``run.lock``, ``metrics.jsonl``, ``events.jsonl``, ``checkpoints/``, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, output_dir: Path, name: str) -> RunFolder:
        """Make a folder that did not exist, called after the run and the time.

        Raises:
            UsageError: it cannot be written.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                suffix = "" if number == 1 else f"-{number}"
                path = (output_dir / f"{name}-{stamp}{suffix}").absolute()
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise UsageError(
                f"checkpointing.output_dir: cannot write to {output_dir}: {error.strerror}"
            ) from error
        raise UsageError(f"checkpointing.output_dir: too many runs called {name} in {output_dir}")

    @staticmethod
    def check_output(output_dir: Path) -> None:
        """Check that runs could be written to a folder, without making it.

        Raises:
            UsageError: it, or the folder it would be made in, cannot be written to.
        """
        there = output_dir.absolute()
        while not there.exists():
            there = there.parent
        why = "" if there.is_dir() else os.strerror(errno.ENOTDIR)
        if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES)
        if why:
            raise UsageError(f"checkpointing.output_dir: cannot write to {output_dir}: {why}")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run folder.

        Raises:
            UsageError: it is none.
        """
        if not (path / CONFIG).is_file():
            raise UsageError(f"{path} is no run folder (it has no {CONFIG})")
        return cls(path.absolute())

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def model(self) -> Path:
        return self.path / "model"

    def channel(self, stage: str) -> str:
        """Where the ends of a stage's transport meet: no other run on the host has the same."""
        digest = hashlib.blake2b(str(self.path).encode(), digest_size=6).hexdigest()
        return f"{self.path.name}-{digest}-{stage}"

    @property
    def rewards_log(self) -> Path:
        """What reward processes print."""
        return self.path / "rewards.log"

    @property
    def logs(self) -> Path:
        """What the processes of replicas print."""
        return self.path / "logs"

    @property
    def addresses(self) -> Path:
        """Where the policy answers OpenAI clients, while it does."""
        return self.path / "addresses.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def check_init(self, model: ModelSection) -> None:
        """Check that ``model.init`` is what the folder's model was made from: it is made once.

        Raises:
            UsageError: it is not; the folder's model would be trained all the same.
        """
        if not (self.model / "config.json").is_file():
            return
        saved = yaml.safe_load(self.config.read_text(encoding="utf-8")) or {}
        made = ModelSection.model_validate(saved.get("model") or {})
        if made.init is not None and made.init != model.init:
            raise UsageError(
                f"model: {self.path} has made its model from model.init and goes on with it; "
                "another model needs a run of its own"
            )

    def remove(self) -> None:
        """Delete the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_config(self, config: RunConfig) -> None:
        self.config.write_text(config.to_yaml())

    def write_summary(self, summary: Summary) -> None:
        data = asdict(summary)
        (self.path / SUMMARY).write_text(json.dumps(data, default=str, indent=1))

    def write_lock(self, config: RunConfig, plugins: PluginManager) -> None:
        """What ran, so that a run can be told from another: versions, hashes, seeds, host."""
        lock: dict[str, Any] = {
            "config_blake2b": hashlib.blake2b(config.to_yaml().encode()).hexdigest()[:32],
            "seeds": {stage.name: stage.training.seed for stage in config.stages},
            "plugins": {
                f"{info.provider}:{info.name}": {
                    "distribution": info.distribution,
                    "version": info.version,
                    "status": info.status,
                }
                for info in plugins.plugins()
            },
            "packages": {
                name: version
                for name in ("forge-rl-core", "torch", "transformers", "safetensors", "pydantic")
                if (version := _installed(name))
            },
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "host": socket.gethostname(),
            "cpus": os.cpu_count(),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        }
        (self.path / LOCK).write_text(yaml.safe_dump(lock, sort_keys=False))


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
