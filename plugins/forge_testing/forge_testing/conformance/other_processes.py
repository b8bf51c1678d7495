"""A dataset in other processes, with other hashes of texts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_core import BuildContext, Dataset, Selection, Task
from forge_local.processes.frames import dumps

HASH_SEEDS = ("1", "2")
"""``PYTHONHASHSEED`` of the processes."""

_CHILD = """
import pickle, sys
source, target = sys.argv[1:]
with open(source, "rb") as file:
    selection, context, indices = pickle.load(file)
dataset = selection.build(context)
with open(target, "wb") as file:
    pickle.dump([dataset[index] for index in indices], file)
"""


def items_in_other_processes(
    selection: Selection[Dataset], context: BuildContext, indices: Sequence[int]
) -> list[list[Task]]:
    """Build a dataset in two processes, and read the same items in each.

    Args:
        selection, context: what is built.
        indices: of the items.

    Returns:
        the items of each process.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_bytes(dumps((selection, context, list(indices))))
        targets = [Path(folder) / seed for seed in HASH_SEEDS]
        processes = [_start(source, target) for target in targets]
        outputs = [process.communicate()[0] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, f"it cannot be built in another process:\n{output}"
        return [pickle.loads(target.read_bytes()) for target in targets]


def _start(source: Path, target: Path) -> subprocess.Popen[Any]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": target.name}
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(source), str(target)],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
