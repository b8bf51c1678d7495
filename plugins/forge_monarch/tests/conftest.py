"""What tests over several hosts share."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from forge_monarch.settings import TlsFiles
from forge_testing.command import process_environ
from forge_testing.runs import until

PAGE = Path(__file__).parents[3] / "docs" / "monarch.md"

Certify = Callable[..., TlsFiles]


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """The right to make hosts: a machine has one set of them, and test files run side by side."""
    with FileLock(Path(tempfile.gettempdir()) / "forge-hosts.lock"):
        yield


@pytest.fixture(scope="session")
def certify(tmp_path_factory: pytest.TempPathFactory) -> Certify:
    """``certify("10.77.0.1", "localhost")``: a certificate for these, made as the docs show it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here, which makes certificates")
    (shown,) = re.findall(r"^    (openssl req (?:.*\\\n)*.*)$", PAGE.read_text(), re.MULTILINE)
    command = shlex.split(shown.replace("\\\n", " "))

    def make(*names: str) -> TlsFiles:
        folder = tmp_path_factory.mktemp("certificates")
        numbers = [f"{'IP' if name[0].isdigit() else 'DNS'}:{name}" for name in names]
        last = f"subjectAltName={','.join(numbers)}"
        made = [last if word.startswith("subjectAltName") else word for word in command]
        subprocess.run(made, cwd=folder, check=True, capture_output=True)
        return TlsFiles(cert=folder / "forge.crt", key=folder / "forge.key")

    return make


FORGE = (sys.executable, "-m", "forge_core")


class Worker:
    """A worker on this machine."""

    def __init__(
        self, folder: Path, *site: Path, tls: TlsFiles | None = None, host: str = "127.0.0.1"
    ) -> None:
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        self.address = f"{'tcp' if tls is None else 'tls'}://{host}:{port}"
        given = [] if tls is None else ["--cert", str(tls.cert), "--key", str(tls.key)]
        self._log = folder / f"worker-{port}.txt"
        environ = process_environ()
        path = [*map(str, site), environ.get("PYTHONPATH", "")]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*FORGE, "worker", self.address, *given],
                stdout=log,
                stderr=log,
                env=environ
                | {"PYTHONPATH": ":".join(filter(None, path)), "CUDA_VISIBLE_DEVICES": ""},
            )
        until(lambda: "waits for runs" in self.printed or self.process.poll() is not None)
        assert self.process.poll() is None, self.printed

    @property
    def printed(self) -> str:
        return self._log.read_text()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(*site: Path, **how: Any) -> Worker:
        started.append(Worker(tmp_path, *site, **how))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
