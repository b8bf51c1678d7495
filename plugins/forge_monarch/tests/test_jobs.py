"""Hosts that a scheduler gives: a real SLURM, and what Kubernetes is asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from monarch.config import configured

from forge_monarch.jobs import MESH, kubernetes_job, with_allocation
from forge_monarch.settings import KubernetesSettings
from forge_testing.command import process_environ
from forge_testing.runs import small_config, until, write_config

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_nodes_of_a_job_as_older_and_newer_slurms_tell_them() -> None:
    older = {
        "job_state": "RUNNING",
        "job_resources": {
            "nodes": "node[1-2]",
            "allocated_nodes": [{"nodename": "node1"}, {"nodename": "node2"}],
        },
    }
    newer = {
        "job_state": ["RUNNING"],
        "job_resources": {"nodes": {"allocation": [{"name": "node1"}, {"name": "node2"}]}},
    }
    assert with_allocation(older)["job_resources"]["nodes"] == newer["job_resources"]["nodes"]
    assert with_allocation(newer) is newer
    waiting = {"job_state": "PENDING", "job_resources": {}}
    assert with_allocation(waiting) is waiting


@pytest.fixture
def slurm(hosts: None) -> Iterator[dict[str, str]]:
    """A cluster of two nodes on this machine; yields the environment that leads there."""
    missing = [name for name in ("sbatch", "slurmctld", "slurmd") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install slurmctld slurmd slurm-client")
    # SLURM has sockets there, whose paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        made = subprocess.run(
            [SCRIPTS / "slurm.sh", "up", "2", folder], capture_output=True, text=True, check=False
        )
        try:
            if made.returncode == 3:
                pytest.fail(made.stderr)
            if made.returncode:
                pytest.skip(f"no SLURM can be started here: {made.stderr.strip()}")
            yield process_environ() | {"SLURM_CONF": f"{folder}/slurm.conf"}
        finally:
            if made.returncode != 3:
                subprocess.run([SCRIPTS / "slurm.sh", "down", folder], check=True)


@pytest.mark.slow
def test_a_run_on_hosts_of_slurm(slurm: dict[str, str], tmp_path: Path) -> None:
    """The run asks for the nodes, ends, and its job ends with it."""
    config = small_config(
        runtime={
            "use": "monarch",
            "slurm": {
                "nodes": 2,
                "python": sys.executable,
                "start_timeout": 120,
                "trust_network": True,
            },
            "services": {"trainer": {"hosts": ["slurm0"]}, "generator": {"hosts": ["slurm1"]}},
        },
        transport={"use": "torchstore"},
        checkpointing={"output_dir": "runs"},
    )
    file = write_config(config, tmp_path / "slurm.yaml")
    command = [SCRIPTS / "hosts.sh", "exec", "1", sys.executable, "-m", "forge_core", "run", file]
    done = subprocess.run(
        command, cwd=tmp_path, env=slurm, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    logs = {name: f"{name}-0-rank0.log" for name in ("trainer", "generator")}
    assert "on host slurm0: started" in (folder / "logs" / logs["trainer"]).read_text()
    assert "on host slurm1: started" in (folder / "logs" / logs["generator"]).read_text()

    def jobs() -> list[Any]:
        told = subprocess.run(
            ["squeue", "--noheader"], env=slurm, capture_output=True, text=True, check=True
        )
        return told.stdout.split()

    until(lambda: not jobs(), limit=120)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[str, Any]]]:
    """In place of a cluster's API, which cannot be had here: what it is asked, in order."""
    asked: list[tuple[str, Any]] = []

    class Api(BaseHTTPRequestHandler):
        def _answer(self, status: int) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((f"{self.command} {self.path}", body))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_GET(self) -> None:
            self._answer(404)

        def do_POST(self) -> None:
            self._answer(201)

        def do_DELETE(self) -> None:
            self._answer(200)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    from kubernetes import client
    from monarch.job.kubernetes import KubeConfig

    def load(self: KubeConfig) -> None:
        client.Configuration.set_default(
            client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        )

    monkeypatch.setattr(KubeConfig, "load", load)  # else it looks for the pod's own credentials
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_kubernetes_is_asked_for_pods_as_the_settings_say(cluster: list[tuple[str, Any]]) -> None:
    settings = KubernetesSettings(
        namespace="training", pods=3, image="forge:1", cpu="8", memory="64Gi", gpus_per_pod=2
    )
    with configured():  # the job has Monarch listen on TCP
        job = kubernetes_job(settings)
        job.apply()
        job.kill()
    meshes = "/apis/monarch.pytorch.org/v1alpha1/namespaces/training/monarchmeshes"
    assert [asked for asked, _ in cluster] == [
        f"GET {meshes}/{MESH}",
        f"POST {meshes}",
        f"DELETE {meshes}/{MESH}",
    ]
    mesh = cluster[1][1]
    assert mesh["kind"] == "MonarchMesh"
    assert mesh["metadata"] == {"name": MESH, "namespace": "training"}
    assert (mesh["spec"]["replicas"], mesh["spec"]["port"]) == (3, 26600)
    (container,) = mesh["spec"]["podTemplate"]["spec"]["containers"]
    assert container["image"] == "forge:1"
    wanted = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"limits": wanted, "requests": wanted}
    environ = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environ["MONARCH_PORT"] == "26600"
    assert "run_worker_loop_forever" in container["command"][-1]
