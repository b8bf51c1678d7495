"""Hosts that a scheduler gives: Monarch's own jobs, made of our settings."""

from __future__ import annotations

from typing import Any

from forge_core import PluginError
from forge_monarch.settings import KubernetesSettings, MonarchSettings, SlurmSettings

MESH = "forge"
"""Name of the job's mesh of hosts."""


def job_of(settings: MonarchSettings) -> Any:
    """The job that asks for the hosts; nothing is asked for yet."""
    if settings.slurm is not None:
        return slurm_job(settings.slurm)
    assert settings.kubernetes is not None
    return kubernetes_job(settings.kubernetes)


def slurm_job(settings: SlurmSettings) -> Any:
    """``sbatch`` with one worker on each node."""
    from monarch.job import SlurmJob

    return SlurmJob(
        meshes={MESH: settings.nodes},
        python_exe=settings.python,
        slurm_args=settings.extra,
        monarch_port=settings.port,
        job_name="forge",
        time_limit=settings.time_limit,
        partition=settings.partition,
        exclusive=settings.exclusive,
        gpus_per_node=settings.gpus_per_node,
        cpus_per_task=settings.cpus_per_task,
        mem=settings.mem,
        job_start_timeout=settings.start_timeout,
        account=settings.account,
        qos=settings.qos,
    )


def kubernetes_job(settings: KubernetesSettings) -> Any:
    """A ``MonarchMesh`` of pods with one worker in each.

    Raises:
        PluginError: the kubernetes package is not installed.
    """
    try:
        from monarch.job.kubernetes import ImageSpec, KubernetesJob
    except ImportError as error:
        raise PluginError(f"runtime.kubernetes: {error}; pip install kubernetes") from error
    resources: dict[str, Any] = {
        name: value
        for name, value in (
            ("cpu", settings.cpu),
            ("memory", settings.memory),
            ("nvidia.com/gpu", settings.gpus_per_pod or None),
        )
        if value is not None
    }
    job = KubernetesJob(namespace=settings.namespace, timeout=settings.start_timeout)
    job.add_mesh(
        MESH,
        num_replicas=settings.pods,
        image_spec=ImageSpec(image=settings.image, resources=resources or None),
        port=settings.port,
    )
    return job
