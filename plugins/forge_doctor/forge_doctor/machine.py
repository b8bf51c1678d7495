"""This machine: processors, devices, memory, disk.

Torch is imported in a process of its own, so that a broken build is something to report instead of
something to crash on.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forge_core import Finding
from forge_core.host_memory import host_memory
from forge_doctor.tested_versions import TESTED_PYTHONS, TESTED_VERSIONS

GIB = 2**30

PROBE = """
import importlib.util, json
found = {}
import torch
found["version"] = torch.__version__
found["devices"] = [
    (p.name, p.total_memory)
    for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
]
found["broken"] = {}
for name in ("torchvision", "torchaudio", "torchcodec"):
    if importlib.util.find_spec(name) is not None:
        try:
            importlib.import_module(name)
        except Exception as error:
            [line, *_] = [*str(error).strip().splitlines(), ""]
            found["broken"][name] = f"{type(error).__name__}: {line}"
print(json.dumps(found))
"""


def python() -> Finding:
    """The interpreter, what was tested with it, and the system."""
    installed = platform.python_version()
    tested = TESTED_PYTHONS.get(".".join(installed.split(".")[:2]))
    if tested is None:
        text = f"{installed} (tested with {', '.join(TESTED_PYTHONS)}), {platform.platform()}"
        return Finding(
            "warning", "python", text, f"python{next(iter(TESTED_PYTHONS))} -m venv .venv"
        )
    return Finding("ok", "python", f"{installed} (tested: {tested}), {platform.platform()}")


def processors(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Cores this process may use, memory, and how many threads torch will take."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    yield Finding("ok", "cpu", f"{cores} cores, {host_memory() / GIB:.1f} GiB of memory")
    threads = environ.get("OMP_NUM_THREADS", "")
    if not threads:
        text = f"not set: every process takes {cores} threads; set it where several share the cores"
        yield Finding("ok", "OMP_NUM_THREADS", text)
    elif not threads.isdecimal() or not 1 <= int(threads) <= cores:
        text = f"is {threads!r} on {cores} cores"
        yield Finding("warning", "OMP_NUM_THREADS", text, f"export OMP_NUM_THREADS={cores}")
    else:
        yield Finding("ok", "OMP_NUM_THREADS", threads)


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
    if found["devices"]:
        text = (
            "runs compute in float32, without tensor cores, unless distributed.precision=bf16 (or "
            "distributed.tf32=true)"
        )
        yield Finding("ok", "precision", text)
    if not found["devices"]:
        if driver.exists():
            text = f"there is a CUDA driver, but torch {found['version']} sees no device"
            yield Finding("warning", "cuda", text, reinstall)
        else:
            yield Finding("ok", "cuda", "no device: runs use the CPU")
    for name, cause in found["broken"].items():
        text = (
            f"does not fit torch {found['version']} ({cause}); "
            "transformers and engines fail where they import it"
        )
        fix = f"pip uninstall -y {name}   (Forge does not use it)"
        yield Finding("error", name, text, fix)


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
        fix = "export FORGE_CHECKPOINTING__OUTPUT_DIR=DIR   (or checkpointing.output_dir=DIR)"
        return Finding("error", "output folder", text, fix)
    return Finding("ok", "output folder", f"{folder} can be written")


def run_folders(environ: Mapping[str, str]) -> Path:
    from forge_core import CheckpointingSection

    default = CheckpointingSection.model_validate({}).output_dir
    return Path(environ.get("FORGE_CHECKPOINTING__OUTPUT_DIR", default))
