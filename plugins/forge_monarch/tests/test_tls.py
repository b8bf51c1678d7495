"""Only a controller with the right certificate gets a worker to run something."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, UsageError
from forge_monarch.host_worker import serve
from forge_monarch.settings import TlsFiles
from forge_monarch.tls import check_certificate
from forge_testing.command import process_environ
from forge_testing.runs import small_config

Certify = Callable[..., TlsFiles]


@pytest.mark.parametrize("address", ["tcp://10.0.0.2:26600", "tcp://192.0.2.7:1", "tcp://gpu7:1"])
def test_a_worker_that_anybody_could_use_is_not_started(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        serve(address)
    host = address.removeprefix("tcp://")
    assert str(refused.value) == (
        f"forge worker: anyone who reaches {address} could run code there; use tls://{host} with "
        "--cert and --key (docs/monarch.md)"
    )


def test_the_command_refuses_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forge_core", "worker", "tcp://10.0.0.2:26600"],
        capture_output=True,
        text=True,
        env=process_environ(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "anyone who reaches tcp://10.0.0.2:26600 could run code there" in done.stderr


def test_certificates_are_given_together_and_used() -> None:
    here = Path("here.pem")
    for given, message in (
        ({"cert": here}, "give --cert and --key together"),
        ({"key": here}, "give --cert and --key together"),
        ({"ca": here}, "give --cert and --key together"),
    ):
        with pytest.raises(UsageError, match=message):
            serve("tls://127.0.0.1:1", **given)
    with pytest.raises(UsageError, match="needs certificates; give --cert and --key"):
        serve("tls://127.0.0.1:1")
    with pytest.raises(UsageError, match="does not use the certificates; write tls://"):
        serve("tcp://127.0.0.1:1", here, here)


def _refused(**runtime: Any) -> str:
    config = small_config(runtime={"use": "monarch", **runtime}, transport={"use": "torchstore"})
    with pytest.raises(UsageError) as refused:
        Forge().check(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_run_refuses_what_its_workers_would(certify: Certify) -> None:
    files = certify("10.0.0.1")
    tls = {"cert": str(files.cert), "key": str(files.key)}
    assert "runtime.hosts.far: anyone who reaches tcp://10.0.0.1:1 could run code there; use " in (
        _refused(hosts={"far": "tcp://10.0.0.1:1"})
    )
    assert "needs certificates; give runtime.tls.cert and runtime.tls.key" in (
        _refused(hosts={"far": "tls://10.0.0.1:1"})
    )
    assert "runtime.hosts.b: tcp://127.0.0.1:1 does not use the certificates" in (
        _refused(hosts={"a": "tls://10.0.0.1:1", "b": "tcp://127.0.0.1:1"}, tls=tls)
    )
    assert "runtime.tls: key nowhere.key: no such file" in (
        _refused(hosts={"far": "tls://10.0.0.1:1"}, tls={**tls, "key": "nowhere.key"})
    )
    assert "runtime.tls: is for runtime.hosts with tls:// addresses" in _refused(tls=tls)


@pytest.mark.parametrize(
    ("scheduler", "port"),
    [
        ({"slurm": {"nodes": 2}}, 22222),
        ({"kubernetes": {"namespace": "n", "pods": 2, "image": "i"}}, 26600),
    ],
    ids=["slurm", "kubernetes"],
)
def test_a_scheduler_s_network_has_to_be_trusted(scheduler: dict[str, Any], port: int) -> None:
    ((name, settings),) = scheduler.items()
    refused = _refused(**scheduler)
    warned = f"runtime.{name}: anyone who reaches port {port} of its workers could run code"
    assert warned in refused
    assert f"set runtime.{name}.trust_network=true" in refused
    runtime = {"use": "monarch", name: {**settings, "trust_network": True}}
    Forge().check(small_config(runtime=runtime, transport={"use": "torchstore"}))


def test_what_is_wrong_with_a_certificate_is_said(certify: Certify, tmp_path: Path) -> None:
    files = certify("10.0.0.1", "localhost")
    check_certificate(files, "10.0.0.1", where="here")
    check_certificate(files, "localhost", where="here")
    with pytest.raises(UsageError, match=r"certificate is not valid for '10\.0\.0\.2'"):
        check_certificate(files, "10.0.0.2", where="here")
    other = certify("10.0.0.1")
    with pytest.raises(UsageError, match="not a certificate and its key"):
        check_certificate(TlsFiles(cert=files.cert, key=other.key), "localhost", where="here")
    with pytest.raises(UsageError, match="its certificate is refused: self-signed certificate"):
        check_certificate(files.model_copy(update={"ca": other.cert}), "localhost", where="here")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    with pytest.raises(UsageError, match="not a certificate and its key"):
        check_certificate(TlsFiles(cert=garbage, key=garbage), "localhost", where="here")


# In a process of its own: what Monarch listens on cannot change once it was used.
PROGRAM = """
import asyncio
import json
import os
import sys
from pathlib import Path

from forge_core import ForgeError, Placement, Selection
from forge_core import ReplicaSpec
from forge_testing.conformance.runtime import PROBE, ProbeSettings
from forge_testing.context import bare_context
from forge_monarch import hosts
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings

hosts.LISTEN_LIMIT = 5.0
hosts.CONNECT_LIMIT = float(sys.argv[3])


async def main():
    settings = MonarchSettings.model_validate(json.loads(sys.argv[1]))
    runtime = MONARCH.build(settings, bare_context())
    spec = ReplicaSpec(
        name="trainer",
        index=0,
        placement=Placement(procs=len(settings.hosts)),
        selection=Selection(
            family="generator", component=PROBE, settings=ProbeSettings(folder=Path(sys.argv[2]))
        ),
        context=bare_context(),
    )
    try:
        replica = await runtime.spawn(spec)
        print(*await replica.call("environment", ("HYPERACTOR_TLS_KEY", "RANK"), {}))
    except ForgeError as error:
        print(f"{type(error).__name__}: {error}")
    await runtime.close()
    sys.stdout.flush()
    os._exit(0)


asyncio.run(main())
"""


def _spawn(folder: Path, hosts: list[str], tls: TlsFiles | None, limit: float = 30.0) -> str:
    """What comes of a replica over the hosts: its environment, or the error."""
    settings: dict[str, Any] = {
        "hosts": {f"h{index}": host for index, host in enumerate(hosts)},
        "services": {"trainer": {"span": len(hosts)}},
    }
    if tls is not None:
        settings["tls"] = tls.model_dump(mode="json")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(settings), str(folder), str(limit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=process_environ(),
    )
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return done.stdout.strip()


def test_two_workers_and_strangers(
    worker: Callable[..., Any], certify: Certify, tmp_path: Path
) -> None:
    """Processes on both hosts reach each other with the files of their own host."""
    ours = certify("127.0.0.1", "127.0.0.2")
    shutil.copytree(ours.cert.parent, tmp_path / "theirs")
    theirs = TlsFiles(cert=tmp_path / "theirs/forge.crt", key=tmp_path / "theirs/forge.key")
    hosts = [worker(tls=theirs, host=host).address for host in ("127.0.0.1", "127.0.0.2")]
    assert _spawn(tmp_path, hosts, ours) == f"{theirs.key} 0"

    stranger = certify("127.0.0.1", "127.0.0.2")
    refused = _spawn(tmp_path, hosts[:1], stranger)
    assert refused.startswith(f"RunFailed: runtime.hosts.h0: no worker answers at {hosts[0]} (its ")
    assert "certificate is refused: self-signed certificate" in refused
    # One that takes the worker's certificate for good, and has none that the worker takes.
    trusting = stranger.model_copy(update={"ca": stranger.cert.with_name("both.crt")})
    assert trusting.ca is not None
    trusting.ca.write_text(stranger.cert.read_text() + ours.cert.read_text())
    assert "(TLS handshake: " in _spawn(tmp_path, hosts[:1], trusting)
    # Without TLS, straight past all checks of ours.
    plain = hosts[0].replace("tls://", "tcp://")
    assert "no answer in 3 s" in _spawn(tmp_path, [plain], None, limit=3.0)
