"""``forge worker``, and controllers that meet one that they cannot work with: one line each."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_monarch.settings import TlsFiles
from forge_testing.command import process_environ
from forge_testing.distributions import FakeSite

FORGE = (sys.executable, "-m", "forge_core")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_says_where_it_waits_and_ends_in_good_order(
    worker: Callable[..., Any], number: signal.Signals
) -> None:
    waiting = worker()
    assert f"worker at {waiting.address}: waits for runs; ctrl-C ends it" in waiting.printed
    waiting.process.send_signal(number)
    assert waiting.process.wait(timeout=60) == 0
    assert waiting.printed.endswith(f"worker at {waiting.address}: ended\n")
    assert "Traceback" not in waiting.printed


def _refused(*command: str) -> str:
    """What a command says that must end with exit code 2 and one line."""
    done = subprocess.run(
        [*FORGE, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=process_environ(),
    )
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    return line


def test_a_port_in_use(worker: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = _refused("worker", f"tcp://127.0.0.1:{port}")
    assert f"tcp://127.0.0.1:{port}: port {port} is in use" in line


def test_an_address_of_another_host(certify: Callable[..., TlsFiles]) -> None:
    files = certify("192.0.2.7")
    line = _refused("worker", "tls://192.0.2.7:26600", *_options(files))
    assert "192.0.2.7 is no address of this host; give one that others reach it by" in line


def _options(files: TlsFiles) -> list[str]:
    return ["--cert", str(files.cert), "--key", str(files.key)]


def test_a_name_that_no_host_has(tmp_path: Path, certify: Callable[..., TlsFiles]) -> None:
    no_host = "tls://no-such-host.invalid:26600"
    files = certify("no-such-host.invalid")
    unknown = "no host is known by the name 'no-such-host.invalid'"
    assert unknown in _refused("worker", no_host, *_options(files))
    line = _refused(
        *("run", "quickstart", "--runtime", "monarch", "--transport", "shm"),
        f"runtime.hosts={{far: '{no_host}'}}",
        f"runtime.tls={{cert: {files.cert}, key: {files.key}}}",
        f"checkpointing.output_dir={tmp_path}",
    )
    assert "runtime.hosts: no way to tls://no-such-host.invalid:26600: no host is known" in line


# In a process of its own: what Monarch listens on cannot change once it was used.
PROGRAM = """
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from forge_core import ForgeError, Placement, Selection
from forge_core import ReplicaSpec
from forge_testing.conformance.runtime import PROBE, ProbeSettings
from forge_testing.context import bare_context
from forge_monarch import hosts
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings

address, folder, to_kill = sys.argv[1:]
hosts.LISTEN_LIMIT = hosts.CONNECT_LIMIT = 3.0
reach = hosts.Hosts._reach


async def kill_and_reach(*arguments):
    if to_kill:
        os.kill(int(to_kill), 9)
    return await reach(*arguments)


hosts.Hosts._reach = kill_and_reach


async def main():
    runtime = MONARCH.build(MonarchSettings(hosts={"far": address}), bare_context())
    settings = ProbeSettings(folder=Path(folder))
    spec = ReplicaSpec(
        name="generator",
        index=0,
        placement=Placement(with_gpus=True),
        selection=Selection(family="generator", component=PROBE, settings=settings),
        context=bare_context(),
    )
    try:
        await runtime.spawn(spec)
    except ForgeError as error:
        print(f"{type(error).__name__}: {error}")
    await runtime.close()


asyncio.run(main())
"""


def _spawn(folder: Path, address: str, to_kill: str = "") -> str:
    """The error of a replica's start on a host, whose worker may be killed as it is reached."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address, str(folder), to_kill],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=process_environ(),
    )
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return done.stdout.strip()


def _no_worker(address: str, why: str) -> str:
    return (
        f"RunFailed: runtime.hosts.far: no worker answers at {address} ({why}); start one there "
        f"with: forge worker {address}"
    )


def test_more_processes_than_devices(worker: Callable[..., Any], tmp_path: Path) -> None:
    error = _spawn(tmp_path, worker().address)
    assert error.startswith("UsageError: ")
    assert "replica 0 needs 1 GPUs (one for each of its procs) and 0 are free" in error


def test_a_worker_of_other_versions(worker: Callable[..., Any], tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    FakeSite(site)("torchmonarch", "", version="0.6.0", entry_points={})
    assert _spawn(tmp_path, worker(site).address) == (
        "UsageError: runtime.hosts.far: its worker has torchmonarch 0.6.0, the controller "
        "torchmonarch 0.7.0; install the same on both"
    )


def test_no_worker(tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:9"
    assert _spawn(tmp_path, address) == _no_worker(address, "connection refused")


def test_a_worker_that_hangs_is_named_in_time(worker: Callable[..., Any], tmp_path: Path) -> None:
    hung = worker()
    hung.process.send_signal(signal.SIGSTOP)
    assert _spawn(tmp_path, hung.address) == _no_worker(hung.address, "no answer in 3 s")


def test_a_worker_that_dies_before_a_mesh_starts(
    worker: Callable[..., Any], tmp_path: Path
) -> None:
    dying = worker()
    error = _spawn(tmp_path, dying.address, str(dying.process.pid))
    assert error == _no_worker(dying.address, "no answer in 3 s")
