"""What is installed, what this machine has, and what of it stops runs. Each check is a function.

Heavy packages are looked at through their metadata; torch is imported in a process of its own, so
that a broken build is something to report instead of something to crash on.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forge_core.plugins.discovery import KERNEL
from forge_core.plugins.info import PluginInfo
from forge_core.plugins.manager import PluginManager
from forge_core.tested_versions import TESTED_VERSIONS

GIB = 2**30
SHM_ENOUGH = GIB
"""Bytes; the ``shm`` transport keeps up to two sets of weights there."""

PROBE = """
import importlib.util, json
found = {}
import torch
found["version"] = torch.__version__
found["devices"] = [
    (p.name, p.total_memory)
    for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
]
if importlib.util.find_spec("torchvision") is not None:
    try:
        import torchvision
    except Exception as error:
        found["torchvision"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        level: ``error`` stops runs; ``warning`` costs speed or may surprise.
        subject: what was looked at.
        text: what was found.
        mend: the line that mends it.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    mend: str = ""


def examine(manager: PluginManager, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All checks, in the order of the report."""
    yield Finding("ok", "python", f"{platform.python_version()}, {platform.platform()}")
    yield from versions()
    yield from unmet_requirements(plugin.distribution for plugin in manager.plugins())
    yield from plugin_health(manager)
    yield from processors(environ)
    if _version("torch") is not None:
        yield from torch_devices(Path("/proc/driver/nvidia/version"))
    yield from shared_memory(Path("/dev/shm"))
    yield output_folder(_output_folder(environ))


def versions() -> Iterator[Finding]:
    """Packages that Forge was tested with, beside the versions that are here."""
    for name, tested in TESTED_VERSIONS.items():
        installed = _version(name)
        if installed is None:
            yield Finding("ok", name, f"not installed (tested with {tested})")
        elif installed.partition("+")[0] == tested:
            yield Finding("ok", name, f"{installed} (tested)")
        else:
            yield Finding("ok", name, f"{installed} (tested with {tested})")


def unmet_requirements(distributions: Iterator[str] | Sequence[str]) -> Iterator[Finding]:
    """What plugins ask for, extras of the kernel included, and is not there in that version."""
    reported: set[str] = set()
    for distribution in dict.fromkeys(filter(None, distributions)):
        for requirement in _unmet(distribution, extras=()):
            if str(requirement) in reported:
                continue
            reported.add(str(requirement))
            installed = _version(requirement.name)
            here = "it is not installed" if installed is None else f"{installed} is installed"
            wanted = f"{requirement.name}{requirement.specifier}"
            text = f"needs {wanted}; {here}"
            yield Finding("error", distribution, text, f"pip install '{wanted}'")


def _unmet(distribution: str, extras: Collection[str]) -> Iterator[Requirement]:
    try:
        lines = importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement = Requirement(line)
        # Whether the kernel fits is the plugin's health.
        is_kernel = canonicalize_name(requirement.name) == KERNEL
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        ):
            continue
        installed = _version(requirement.name)
        if not is_kernel and (
            installed is None or not requirement.specifier.contains(installed, prereleases=True)
        ):
            yield requirement
        elif requirement.extras:
            yield from _unmet(requirement.name, requirement.extras)


def plugin_health(manager: PluginManager) -> Iterator[Finding]:
    """Plugins with their versions, and why one cannot be used; names that are there twice."""
    for plugin in manager.plugins():
        subject = f"plugin {plugin.name}"
        if plugin.status in ("broken", "refused"):
            text = f"{plugin} is {plugin.status}: {plugin.cause}"
            yield Finding("error", subject, text, _mend_plugin(plugin))
        else:
            yield Finding("ok", subject, f"{plugin} {plugin.cause}".rstrip())
    for line in manager.catalog.conflicts():
        yield Finding("warning", "plugins", line)


def _mend_plugin(plugin: PluginInfo) -> str:
    leave_out = f"export FORGE_DISABLE_PLUGINS={plugin.name}"
    if plugin.status == "refused":
        return f"pip install --upgrade {plugin.distribution}   (or leave it out: {leave_out})"
    return leave_out


def processors(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Cores this process may use, memory, and how many threads torch will take."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    yield Finding("ok", "cpu", f"{cores} cores, {_memory() / GIB:.1f} GiB of memory")
    threads = environ.get("OMP_NUM_THREADS", "")
    if not threads:
        text = f"not set: every process takes {cores} threads; set it where several share the cores"
        yield Finding("ok", "OMP_NUM_THREADS", text)
    elif not threads.isdecimal() or not 1 <= int(threads) <= cores:
        text = f"is {threads!r} on {cores} cores"
        yield Finding("warning", "OMP_NUM_THREADS", text, f"export OMP_NUM_THREADS={cores}")
    else:
        yield Finding("ok", "OMP_NUM_THREADS", threads)


def _memory() -> int:
    """Bytes this process may use: the machine's, or its control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total


def torch_devices(driver: Path) -> Iterator[Finding]:
    """Devices torch sees, and builds that do not fit together.

    Args:
        driver: exists where a CUDA driver is loaded.
    """
    reinstall = f"pip install --force-reinstall torch=={TESTED_VERSIONS['torch']}"
    try:
        found = _probe_torch()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        yield Finding("error", "torch", f"cannot be imported: {error}", reinstall)
        return
    for name, memory in found["devices"]:
        yield Finding("ok", "cuda", f"{name}, {memory / GIB:.1f} GiB")
    if not found["devices"]:
        if driver.exists():
            text = f"there is a CUDA driver, but torch {found['version']} sees no device"
            yield Finding("warning", "cuda", text, reinstall)
        else:
            yield Finding("ok", "cuda", "no device: runs use the CPU")
    if "torchvision" in found:
        text = (
            f"does not fit torch {found['version']} ({found['torchvision']}); "
            "transformers fails where it imports it"
        )
        yield Finding(
            "error", "torchvision", text, "pip uninstall -y torchvision   (Forge does not use it)"
        )


def _probe_torch() -> dict[str, Any]:
    """Import torch elsewhere and say what it sees.

    Raises:
        ValueError: the import failed; the message is its last line.
    """
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        raise ValueError(lines[-1] if lines else f"the process ended with {result.returncode}")
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def shared_memory(folder: Path) -> Iterator[Finding]:
    """Room for weights that travel to other processes of this host."""
    if not folder.is_dir():
        text = f"{folder} is not there: weights cannot travel to other processes by shared memory"
        yield Finding("warning", "shared memory", text, "set transport.use=memory")
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    text = f"{free / GIB:.1f} GiB free in {folder}"
    if free < SHM_ENOUGH:
        mend = f"mount -o remount,size=8G {folder}   (in a container: docker run --shm-size=8g)"
        yield Finding("warning", "shared memory", text, mend)
    else:
        yield Finding("ok", "shared memory", text)


def output_folder(folder: Path) -> Finding:
    """Whether runs can be written where they go."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"runs cannot be written to {folder}: {error.strerror} ({place})"
        mend = "export FORGE_CHECKPOINTING__OUTPUT_DIR=DIR   (or checkpointing.output_dir=DIR)"
        return Finding("error", "output folder", text, mend)
    return Finding("ok", "output folder", f"{folder} can be written")


def _output_folder(environ: Mapping[str, str]) -> Path:
    from forge_core.config.sections import CheckpointingSection

    default = CheckpointingSection.model_validate({}).output_dir
    return Path(environ.get("FORGE_CHECKPOINTING__OUTPUT_DIR", default))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
