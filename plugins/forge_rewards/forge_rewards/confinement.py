"""What a reward process is given of the controller's environment, and what it may use.

Not a sandbox: what runs as the run's user may do what that user may do. It keeps accidents of
model-written programs from the host, and secrets out of the environment that they see.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Self

from forge_core import Placement, RewardWorkersSection
from forge_core.host_memory import host_memory

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "LC_*"),
    *("TMPDIR", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*", "NUMEXPR_*", "RAYON_NUM_THREADS", "MALLOC_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TRITON_*", "NCCL_*"),
    *("TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "SENTENCE_TRANSFORMERS_HOME"),
)
"""Variables (patterns of their names) that programs need to run and that hold no secrets."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Limits of each reward process and of each program that it starts; its environment.

    Args:
        inherit_env: further variables, or patterns of them.
        memory_gib: of private memory; None: half of the host's, without a limit on a GPU.
        cpu_seconds: of one sample in the reward process, and in the whole life of a program that it
            starts; None: no limit.
        processes: of all that a reward process has started, at one time.
        open_files: descriptors.
        file_gib: of one file that is written.
    """

    inherit_env: tuple[str, ...] = ()
    memory_gib: float | None = None
    cpu_seconds: int | None = None
    processes: int = 1024
    open_files: int = 4096
    file_gib: float = 16.0

    @classmethod
    def of(cls, section: RewardWorkersSection) -> Self:
        """What section ``reward_workers`` asks for."""
        return cls(
            inherit_env=section.inherit_env,
            memory_gib=section.memory_gib,
            cpu_seconds=section.cpu_seconds,
            processes=section.processes,
            open_files=section.open_files,
            file_gib=section.file_gib,
        )

    def placed(self, placement: Placement) -> Confinement:
        """That of reward processes whose judges are placed so."""
        memory = self.memory_gib
        if memory is None and placement.with_gpus:
            memory = math.inf  # drivers map much, and copies of weights pass through host memory
        inherit_env = (*self.inherit_env, *placement.env)
        return replace(self, inherit_env=inherit_env, memory_gib=memory)

    def environment(self, source: Mapping[str, str]) -> dict[str, str]:
        """The variables of ``source`` that a reward process gets."""
        patterns = (*INHERITED, *self.inherit_env)
        return {
            name: value
            for name, value in source.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }

    def apply(self) -> None:
        """Limit this process, and what it starts from now on."""
        # Not the address space: CUDA, sanitizers and Go programs reserve far more than they use.
        memory = self.memory_gib * _GIB if self.memory_gib is not None else host_memory() / 2
        _limit(resource.RLIMIT_DATA, memory)
        _limit(resource.RLIMIT_NOFILE, self.open_files)
        _limit(resource.RLIMIT_FSIZE, self.file_gib * _GIB)
        _limit(resource.RLIMIT_CORE, 0)

    def begin_sample(self) -> None:
        """Give the sample that is judged next its CPU seconds."""
        if self.cpu_seconds is not None:
            used = math.ceil(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (_least(used + self.cpu_seconds, hard), hard))


def close_to_other_processes() -> None:
    """Keep the user's other processes from reading this one's memory and taking its descriptors.

    Linux only (``PR_SET_DUMPABLE``, see prctl(2)); root may do it all the same. Programs that this
    process starts are open again.
    """
    if sys.platform == "linux":
        import ctypes

        pr_set_dumpable = 4
        ctypes.CDLL(None).prctl(pr_set_dumpable, 0)


def _limit(kind: int, most: float) -> None:
    """Lower a limit for good; one that is lower already stays."""
    if math.isfinite(most):
        soft, hard = resource.getrlimit(kind)
        value = _least(_least(int(most), soft), hard)
        resource.setrlimit(kind, (value, value))


def _least(value: int, limit: int) -> int:
    return value if limit == resource.RLIM_INFINITY else min(value, limit)
