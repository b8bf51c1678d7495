"""Hosts that a scheduler gives: Monarch's own jobs, made of our settings."""

from __future__ import annotations

import secrets
from typing import Any

from forge_core import PluginError
from forge_monarch.settings import KubernetesSettings, MonarchSettings, SlurmSettings

MESH = f"forge{secrets.token_hex(4)}"
"""Name of the job's mesh of hosts. Kubernetes would give two runs of one name the same pods."""


def job_of(settings: MonarchSettings) -> Any:
    """The job that asks for the hosts; nothing is asked for yet."""
    if settings.slurm is not None:
        return slurm_job(settings.slurm)
    assert settings.kubernetes is not None
    return kubernetes_job(settings.kubernetes)


def slurm_job(settings: SlurmSettings) -> Any:
    """``sbatch`` with one worker on each node."""
    from monarch.job import SlurmJob

    class Job(SlurmJob):  # type: ignore[misc]
        """Monarch reads what ``squeue --json`` says since SLURM 23.11."""

        def _get_job_info_json(self, job_id: str) -> dict[str, Any] | None:
            info: dict[str, Any] | None = super()._get_job_info_json(job_id)
            return info and with_allocation(info)

    return Job(
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


def with_allocation(info: dict[str, Any]) -> dict[str, Any]:
    """A job as ``squeue --json`` tells of it, with its nodes where SLURM 23.11 and later have them.

    Nothing is changed in what those say.
    """
    resources = info.get("job_resources") or {}
    if isinstance(resources.get("nodes"), str):
        nodes = [{"name": node["nodename"]} for node in resources["allocated_nodes"]]
        info = {**info, "job_resources": {**resources, "nodes": {"allocation": nodes}}}
    return info


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
