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
import traceback
from collections.abc import Collection
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter

from forge_core import DataError, Summary, UsageError
from forge_core.config.effective import to_yaml
from forge_core.config.in_force import (
    CONFIG,
    HASH,
    LOCK,
    RESUMES,
    config_hash,
    config_in_force,
    records,
    sealed,
)
from forge_run import durable
from forge_run.code_files import KEY, file_hashes, keep_files

if TYPE_CHECKING:
    from forge_core import RunConfig
    from forge_core.plugins.manager import PluginManager

SUMMARY = "summary.json"
ERROR = "error.txt"


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
            UsageError: it, or the folder it would be made in, cannot be written to or has a name
                that libraries cannot open.
        """
        there = output_dir.absolute()
        try:
            str(there).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"checkpointing.output_dir: {there}: not UTF-8, which tokenizers cannot open; "
                "choose another folder"
            ) from None
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
        """The config in force.

        Raises:
            ConfigError: it is damaged.
        """
        return config_in_force(self.path)

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def models(self) -> Path:
        """Where those of ``models:`` are kept that are made from a seed."""
        return self.path / "models"

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

    def remove(self) -> None:
        """Delete the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def start(self, config: RunConfig, plugins: PluginManager) -> None:
        """Record what a new run is started with."""
        # A folder is a run's once it has a config, which is never without its hash.
        keep_files(self.path, config)
        durable.write_text(self.path / LOCK, lock_text(config, plugins))
        durable.write_text(self.path / CONFIG, to_yaml(config.tree))

    def admit(self, config: RunConfig, plugins: PluginManager) -> Path:
        """Record what a resumed run goes on with; it is in force from now on."""
        number = max((int(path.name) for path in records(self.path)[1:]), default=0) + 1
        place = self.path / RESUMES / str(number)
        keep_files(self.path, config)
        with durable.new_folder(place) as draft:
            lock = lock_text(config, plugins, self.presets())
            (draft / LOCK).write_text(lock, encoding="utf-8")
            (draft / CONFIG).write_text(to_yaml(config.tree), encoding="utf-8")
        return place

    def presets(self) -> set[tuple[str, str]]:
        """(kind, name) of the presets that the run's config came from, as far as is known."""
        try:
            said = yaml.safe_load((records(self.path)[-1] / LOCK).read_text(encoding="utf-8"))
            named = [line.split(" ", 1) for line in said["presets"]]
            return {(kind, name) for kind, name in named}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
            return set()

    def write_summary(self, summary: Summary) -> None:
        data = asdict(summary)
        durable.write_text(self.path / SUMMARY, json.dumps(data, default=str, indent=1))

    def read_summary(self) -> Summary | None:
        """How the run's last process ended; None: it could not say.

        Raises:
            DataError: the file is damaged.
        """
        path = self.path / SUMMARY
        try:
            data = json.loads(path.read_bytes())
            summary = TypeAdapter(Summary).validate_python(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise DataError(f"{path}: cannot be read ({reason})") from None
        checkpoint = Path(summary.checkpoint) if summary.checkpoint else None
        return replace(
            summary,
            folder=self.path,
            evaluations=tuple(summary.evaluations),
            # Also after the folder was moved.
            checkpoint=checkpoint and self.checkpoints / checkpoint.name,
        )

    def write_error(self, error: BaseException) -> Path:
        """The whole traceback."""
        path = self.path / ERROR
        durable.write_text(path, "".join(traceback.format_exception(error)))
        return path


def lock_text(
    config: RunConfig, plugins: PluginManager, presets: Collection[tuple[str, str]] = ()
) -> str:
    """What identifies a run: versions, hashes, seeds, host.

    Args:
        config: resolved.
        plugins: of the app.
        presets: (kind, name) of those that the run was started with, where it goes on.
    """
    lock: dict[str, Any] = {
        HASH: config_hash(to_yaml(config.tree).encode()),
        "seeds": {stage.name: stage.training.seed for stage in config.stages},
        "presets": sorted(f"{kind} {name}" for kind, name in {*presets, *config.presets()}),
        "plugins": {
            f"{info.provider}:{info.name}": {
                "distribution": info.distribution,
                "version": info.version,
                "status": info.status,
            }
            for info in plugins.plugins()
        },
        KEY: file_hashes(config),
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
    return sealed(yaml.safe_dump(lock, sort_keys=False))


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
