"""Settings of runtime ``monarch``. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, model_validator

from forge_core import Settings

TESTED = "0.7.0"
"""Version of torchmonarch that this package was tested with, and pins."""

THIS_HOST = "this"
"""Name of the machine that the controller runs on, where no hosts are named."""


class ServicePlacement(Settings):
    """Which hosts the replicas of one service live on."""

    hosts: tuple[str, ...] = Field(
        (), description="names of hosts; replica i takes the i-th, going round; default: all"
    )
    span: int = Field(
        1, ge=1, description="hosts that the processes of one replica are spread over, evenly"
    )


class TlsFiles(Settings):
    """Certificates in PEM. Each end shows its own and accepts those that ``ca`` has signed."""

    cert: Path = Field(description="certificate of this host; names what others reach it by")
    key: Path = Field(description="its private key, without a password")
    ca: Path | None = Field(
        None, description="authority that signs every host's certificate; null: cert, shared by all"
    )


_TRUST_NETWORK = Field(
    False,
    description="only people you trust reach the workers' port: Monarch starts them without TLS, "
    "and anyone who reaches one runs code as you",
)


class SlurmSettings(Settings):
    """Hosts that Monarch asks SLURM for."""

    nodes: int = Field(ge=1, description="nodes of the job")
    partition: str | None = Field(None, description="SLURM partition")
    account: str | None = Field(None, description="account that is charged")
    qos: str | None = Field(None, description="quality of service")
    time_limit: str | None = Field(None, description="longest time of the job, HH:MM:SS")
    gpus_per_node: int | None = Field(None, ge=1, description="GPUs of each node")
    cpus_per_task: int | None = Field(None, ge=1, description="CPU cores of each node's worker")
    mem: str | None = Field(None, description="memory of each node, as sbatch takes it")
    exclusive: bool = Field(True, description="no other job on the nodes")
    python: str = Field("python", description="Python executable on the nodes")
    port: int = Field(22222, ge=1, le=65535, description="TCP port of the workers")
    start_timeout: int | None = Field(
        None, ge=1, description="seconds to wait for the job to start; null: for ever"
    )
    trust_network: bool = _TRUST_NETWORK
    extra: tuple[str, ...] = Field((), description="further arguments of sbatch")


class KubernetesSettings(Settings):
    """Hosts that Monarch asks a Kubernetes cluster for (its MonarchMesh operator)."""

    namespace: str = Field(description="namespace of the pods")
    pods: int = Field(ge=1, description="pods, one host each")
    image: str = Field(description="container image with Forge and its plugins")
    cpu: str | None = Field(None, description="CPU of each pod, as Kubernetes takes it")
    memory: str | None = Field(None, description="memory of each pod, as Kubernetes takes it")
    gpus_per_pod: int = Field(0, ge=0, description="GPUs of each pod (nvidia.com/gpu)")
    port: int = Field(26600, ge=1, le=65535, description="TCP port of the workers")
    start_timeout: int | None = Field(
        None, ge=1, description="seconds to wait for the pods; null: for ever"
    )
    trust_network: bool = _TRUST_NETWORK


class MonarchSettings(Settings):
    """Which hosts there are, and what lives on them. Without any: the controller's machine."""

    hosts: Mapping[str, str] = Field(
        default_factory=dict,
        description="name -> address of hosts where `forge worker` runs, such as "
        "tls://10.0.0.2:26600",
    )
    tls: TlsFiles | None = Field(
        None, description="the controller's certificate, for hosts with tls:// addresses"
    )
    local_hosts: int = Field(
        0, ge=0, description="hosts to play on this machine, named local0, local1, ..."
    )
    slurm: SlurmSettings | None = Field(None, description="ask SLURM for hosts slurm0, slurm1, ...")
    kubernetes: KubernetesSettings | None = Field(
        None, description="ask Kubernetes for hosts pod0, pod1, ..."
    )
    services: Mapping[str, ServicePlacement] = Field(
        default_factory=dict,
        description="service (generator, trainer, reference, rewards, replay_buffer) -> where its "
        "replicas live",
    )

    hang_after: float = Field(
        15.0,
        gt=0,
        description="seconds a process may be silent before its replica counts as hung and is "
        "replaced; a machine with too little CPU may be silent for seconds",
    )

    @model_validator(mode="after")
    def _one_source(self) -> MonarchSettings:
        sources = [
            name for name in ("hosts", "local_hosts", "slurm", "kubernetes") if getattr(self, name)
        ]
        if len(sources) > 1:
            raise ValueError(f"give one of {' and '.join(sources)}, not both")
        return self

    def host_names(self) -> list[str]:
        """Names of all hosts, in order; known before any is reached."""
        if self.hosts:
            return list(self.hosts)
        if self.local_hosts:
            return [f"local{index}" for index in range(self.local_hosts)]
        if self.slurm is not None:
            return [f"slurm{index}" for index in range(self.slurm.nodes)]
        if self.kubernetes is not None:
            return [f"pod{index}" for index in range(self.kubernetes.pods)]
        return [THIS_HOST]

    def machine(self, host: str) -> str:
        """What a host has in common with others on the same machine, as far as its address tells.

        Args:
            host: one of ``host_names``.
        """
        if self.local_hosts or host == THIS_HOST:
            return THIS_HOST
        if host not in self.hosts:
            return host  # a node or a pod
        name = self.hosts[host].partition("://")[2].rpartition(":")[0]
        return THIS_HOST if name == "localhost" or name.startswith("127.") else name

    def gpus_per_host(self) -> int | None:
        """GPUs that each host has, where that is known before any is reached."""
        if self.hosts:
            return None
        if self.slurm is not None:
            return self.slurm.gpus_per_node
        if self.kubernetes is not None:
            return self.kubernetes.gpus_per_pod
        from forge_local.devices import visible_devices  # imports asyncio, which is slow

        return len(visible_devices())

    def placement(self, service: str) -> ServicePlacement:
        """The service's placement, else the default one."""
        return self.services.get(service, ServicePlacement())
