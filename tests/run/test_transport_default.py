"""Where generator or trainer live decides which transport can reach them."""

from __future__ import annotations

import pytest

from forge_core import Forge, UsageError


@pytest.mark.parametrize(
    ("override", "transport"),
    [
        ("training.seed=1", "memory"),
        ("generator.replicas=2", "memory"),
        ("generator.isolate=true", "shm"),
        ("trainer.isolate=true", "shm"),
        ("trainer.env.NAME=value", "shm"),
        ("generator.with_gpus=true", "shm"),
    ],
)
def test_the_default_transport_reaches_where_the_replicas_live(override, transport):
    config = Forge().resolve("quickstart", [override])  # a check would look for the GPUs
    assert {stage.transport.name for stage in config.stages} == {transport}


def test_a_transport_of_one_process_is_refused_where_an_end_lives_in_another():
    with pytest.raises(UsageError) as refused:
        Forge().check("quickstart", ["generator.isolate=true", "transport.use=memory"])
    assert str(refused.value) == (
        "transport.use: transport 'memory' works within one process, and generator.isolate put an "
        "end of it into another (stage 'sft'); use --transport shm on one host"
    )


def test_routing_and_concurrency_reach_the_service():
    config, _ = Forge().check("quickstart", ["generator.routing=prefix", "generator.concurrency=8"])
    options = config.stages[0].generator_options
    assert (options.routing, options.concurrency) == ("prefix", 8)
    with pytest.raises(UsageError, match=r"generator\.routing"):
        Forge().check("quickstart", ["generator.routing=random"])
