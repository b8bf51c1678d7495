"""Placement over hosts, checked before anything starts; jobs as schedulers take them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from monarch.config import configured

from forge_core import ConfigError, Forge, Placement, UsageError
from forge_monarch.failure_text import describe, failed_rank
from forge_monarch.host_worker import serve
from forge_monarch.jobs import slurm_job
from forge_monarch.placement import check_services, hosts_of
from forge_monarch.settings import MonarchSettings, ServicePlacement, SlurmSettings, TlsFiles
from forge_testing.runs import small_config

HOSTS = {"a": "tls://10.0.0.1:26600", "b": "tls://10.0.0.2:26600", "c": "tls://10.0.0.3:26600"}


def _settings(**services: Any) -> MonarchSettings:
    return MonarchSettings(hosts=HOSTS, services=services)


def test_replicas_go_round_the_hosts() -> None:
    settings = _settings()
    assert [hosts_of(settings, "generator", index, 1) for index in range(4)] == [
        ["a"],
        ["b"],
        ["c"],
        ["a"],
    ]


def test_a_service_keeps_to_its_hosts() -> None:
    settings = _settings(generator=ServicePlacement(hosts=("b", "c")))
    assert [hosts_of(settings, "generator", index, 1) for index in range(3)] == [
        ["b"],
        ["c"],
        ["b"],
    ]
    assert hosts_of(settings, "trainer", 0, 1) == ["a"]


def test_a_replica_may_span_hosts() -> None:
    settings = _settings(trainer=ServicePlacement(hosts=("a", "b"), span=2))
    assert hosts_of(settings, "trainer", 0, 4) == ["a", "b"]


@pytest.fixture
def tls(certify: Callable[..., TlsFiles]) -> dict[str, str]:
    """Section ``runtime.tls``."""
    files = certify("10.0.0.1")
    return {"cert": str(files.cert), "key": str(files.key)}


def _refused(*overrides: str, **sections: Any) -> str:
    """What the check of a config, before anything starts, refuses it for."""
    runtime = {"use": "monarch", "hosts": HOSTS, **sections.pop("runtime", {})}
    config = small_config(runtime=runtime, **sections)
    with pytest.raises(UsageError) as refused:
        Forge().check(config, overrides)
    return str(refused.value)


@pytest.mark.parametrize(
    ("services", "problem"),
    [
        (
            {"generator": {"hosts": ["bb"]}},
            "runtime.services.generator.hosts: no host 'bb'; there are: a, b, c (did you mean b?)",
        ),
        (
            {"generatr": {"hosts": ["b"]}},
            "runtime.services.generatr: no such service; allowed: generator, trainer, reference, "
            "rewards, replay_buffer (did you mean generator?)",
        ),
        (
            {"trainer": {"span": 4}},
            "runtime.services.trainer.span: 4 hosts for each replica, but there are 3",
        ),
        (
            {"trainer": {"span": 2}},
            "runtime.services.trainer.span: 3 processes cannot be spread evenly over 2 hosts",
        ),
        (
            {"reference": {"hosts": ["a"]}},
            "runtime.services.reference: no stage has a section reference; without one the "
            "trainer holds the reference",
        ),
        (
            {"rewards": {"hosts": ["a"]}},
            "runtime.services.rewards: rewards live in the controller's process; "
            "reward_workers.isolate=true places them",
        ),
        (
            {"replay_buffer": {"hosts": ["a"]}},
            "runtime.services.replay_buffer: the replay buffer lives in the controller's process; "
            "replay_buffer.isolate=true places it",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_a_start(services: dict[str, Any], problem: str) -> None:
    trainer = {"use": "titan", "procs": 3}
    assert _refused(runtime={"services": services}, trainer=trainer) == problem


@pytest.mark.parametrize(
    ("service", "placed"),
    [
        ("reference", {"reference": {"use": "titan", "procs": 3}}),
        ("rewards", {"reward_workers": {"isolate": True}}),
        (
            "replay_buffer",
            {
                "replay_buffer": {"isolate": True},
                "recipe": {"use": "grpo", "group_size": 8, "max_staleness": 1},
            },
        ),
    ],
)
def test_every_service_is_checked(service: str, placed: dict[str, Any]) -> None:
    config = {"loss": {"use": "grpo", "kl_coef": 0.1}, **placed}
    host, span = ({service: place} for place in ({"hosts": ["z"]}, {"span": 2}))
    assert f"runtime.services.{service}.hosts: no host 'z'" in _refused(
        runtime={"services": host}, **config
    )
    assert f"runtime.services.{service}.span: {3 if service == 'reference' else 1} process" in (
        _refused(runtime={"services": span}, **config)
    )


def test_gpus_are_counted_where_the_scheduler_says_how_many_there_are() -> None:
    slurm = {"nodes": 2, "gpus_per_node": 4}
    config = {
        "loss": {"use": "grpo", "kl_coef": 0.1},
        "trainer": {"use": "titan", "procs": 4, "with_gpus": True},
        "reference": {"use": "titan", "procs": 4, "with_gpus": True},
        "generator": {"with_gpus": True},
        "reward_workers": {"with_gpus": True},
    }
    services = {name: {"hosts": ["slurm0"]} for name in ("trainer", "rewards")} | {
        name: {"hosts": ["slurm1"]} for name in ("reference", "generator")
    }
    assert _refused(runtime={"hosts": {}, "slurm": slurm, "services": services}, **config) == (
        "with_gpus: host 'slurm0' has 4 GPUs and needs 5: 4 with trainer, 1 with rewards (one for "
        "each of their procs)"
    )


def test_gpus_are_counted_once_the_hosts_have_said_how_many_there_are() -> None:
    settings = _settings(trainer=ServicePlacement(span=2))
    services = {
        "trainer": Placement(procs=4, with_gpus=True),
        "generator": Placement(replicas=3, with_gpus=True),
    }
    check_services(settings, services, {"a": 3, "b": 3, "c": 1})
    check_services(settings, services, {})  # not known yet
    with pytest.raises(UsageError, match="host 'b' has 2 GPUs and needs 3: 2 with trainer, 1 with"):
        check_services(settings, services, {"a": 3, "b": 2, "c": 1})


def test_one_source_of_hosts(tmp_path: Path) -> None:
    config = {"runtime": {"use": "monarch", "hosts": HOSTS, "local_hosts": 2}}
    with pytest.raises(ConfigError, match="give one of hosts and local_hosts, not both"):
        Forge().resolve("quickstart", config)


def test_a_slurm_job_is_asked_for_as_the_settings_say(tmp_path: Path, monkeypatch: Any) -> None:
    """Up to the batch script that sbatch would get; there is no cluster here."""
    submitted: list[str] = []

    def sbatch(command: list[str], **options: Any) -> Any:
        submitted.append(options.get("input") or Path(command[-1]).read_text())
        raise FileNotFoundError("sbatch")

    monkeypatch.setattr("subprocess.run", sbatch)
    with configured():  # the job has Monarch listen on TCP
        job = slurm_job(
            SlurmSettings(
                nodes=3, partition="gpu", gpus_per_node=8, time_limit="01:00:00", qos="high"
            )
        )
        with pytest.raises((FileNotFoundError, RuntimeError)):
            job.apply()
    (script,) = submitted
    for line in (
        "--nodes=3",
        "--partition=gpu",
        "--time=01:00:00",
        "--qos=high",
        "--job-name=forge",
    ):
        assert line in script
    assert "srun" in script


def test_reports_become_causes() -> None:
    killed = "The actor x{'hosts': 1/2, 'procs': 0/2} failed:\n  process failed: Killed(sig=9)"
    assert describe(killed) == "was killed by SIGKILL"
    assert failed_rank(killed) == 2
    assert describe("stopped: no status received from process").startswith("does not answer")
    starting = "ValueError: failed to configure: Ready(Terminal(Killed { signal: 9, core: false }))"
    assert describe(starting) == "was killed by SIGKILL"
    assert failed_rank("no coordinates") is None


def test_a_worker_needs_an_address_that_others_can_reach() -> None:
    for address in ("10.0.0.1", "tcp://0.0.0.0:26600", "tcp://host"):
        with pytest.raises(UsageError, match="no address"):
            serve(address)


@pytest.mark.parametrize("transport", [{"use": "shm"}, {"use": "cuda_ipc"}])
def test_a_transport_of_one_host_between_two(
    transport: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    services = {"trainer": {"hosts": ["a"]}, "generator": {"hosts": ["b"]}}
    message = _refused(runtime={"services": services}, transport=transport)
    name = transport["use"]
    assert (
        f"transport.use: transport '{name}' works on one host, and the trainer is on a" in message
    )
    assert "the generator is on b" in message
    assert "such as --transport torchstore" in message
    assert "\n" not in message


def test_a_transport_of_one_host_on_one(tls: dict[str, str]) -> None:
    services = {name: {"hosts": ["b"]} for name in ("trainer", "generator")}
    for runtime in (
        {"hosts": HOSTS, "services": services, "tls": tls},
        {"hosts": {"a": "tcp://127.0.0.1:1", "b": "tcp://localhost:2"}},
        {"local_hosts": 2},
    ):
        Forge().check(small_config(runtime={"use": "monarch", **runtime}))


def test_a_transport_that_nothing_goes_over(tls: dict[str, str]) -> None:
    """Supervised training without evaluation starts no generator, wherever it would be."""
    services = {"trainer": {"hosts": ["b"]}}
    runtime = {"use": "monarch", "hosts": HOSTS, "services": services, "tls": tls}
    config = small_config(runtime=runtime, recipe={"use": "sft"})
    config["transport"] = {"use": "shm"}
    Forge().check(config)
    with pytest.raises(UsageError, match="works on one host"):
        Forge().check(config | {"eval_dataset": config["dataset"]})


def test_the_default_transport_between_two_hosts(tls: dict[str, str]) -> None:
    services = {"trainer": {"hosts": ["a"]}, "generator": {"hosts": ["b"]}}
    runtime = {"use": "monarch", "hosts": HOSTS, "services": services, "tls": tls}
    (stage,) = Forge().resolve(small_config(runtime=runtime)).stages
    assert stage.transport is not None
    assert stage.transport.name == "torchstore"


def test_a_transport_that_reaches_several_hosts(tls: dict[str, str]) -> None:
    services = {"trainer": {"hosts": ["a"]}, "generator": {"hosts": ["b"]}}
    runtime = {"use": "monarch", "hosts": HOSTS, "services": services, "tls": tls}
    Forge().check(small_config(runtime=runtime, transport={"use": "torchstore"}))
