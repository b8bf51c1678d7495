"""A replica takes requests only after it holds the version asked for and a checksum agrees."""

from __future__ import annotations

import asyncio

import pytest

from forge_core import FanoutError, ReplicaDied, RunFailed, WeightManifest, WeightMismatch
from forge_services import Health, update_weights


def manifest(version):
    return WeightManifest(version, checksum=f"sum-{version}", tensors=2, bytes=64)


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def test_every_replica_loads_and_proves(site, start):
    generator = await start(replicas=3)
    await update_weights(generator, manifest(4))
    assert await generator.held_version.fanout() == [4, 4, 4]


async def test_a_wrong_checksum_names_the_replica_and_takes_it_out_of_rotation(site, start):
    generator = await start(replicas=3, restarts=1)
    site.wrong[1] = "stale"
    with pytest.raises(WeightMismatch) as caught:
        await update_weights(generator, manifest(4))
    assert str(caught.value) == (
        "replica 1 of 'generator' holds version 4 with checksum stale, not sum-4"
    )
    assert generator.status().replicas[1].health == Health.RECOVERING
    assert await generator.index.fanout() == [0, 2]
    # Still wrong after its restart: it never comes back.
    await until(lambda: generator.status().replicas[1].health == Health.UNHEALTHY)
    assert await generator.index.fanout() == [0, 2]


async def test_a_wrong_version_is_told_from_a_wrong_checksum(site, start):
    generator = await start()

    async def stuck(manifest):
        return WeightManifest(0, manifest.checksum, 2, 64)

    site.workers[0].update_weights = stuck
    with pytest.raises(WeightMismatch, match="replica 0 of 'generator' holds version 0, not 4"):
        await update_weights(generator, manifest(4))


async def test_a_component_that_reports_nothing_is_a_mismatch(site, start):
    generator = await start()

    async def silent(manifest):
        return None

    site.workers[0].update_weights = silent
    with pytest.raises(WeightMismatch, match="reports None instead of the weights it holds"):
        await update_weights(generator, manifest(4))


async def test_a_restarted_replica_loads_the_current_weights_before_traffic(site, start):
    generator = await start(replicas=2)
    await update_weights(generator, manifest(1))
    await update_weights(generator, manifest(2))
    site.journal.clear()
    site.replicas[0].kill("kill -9")
    await until(lambda: generator.status().replicas[0].restarts == 1)
    while (health := generator.status().replicas[0].health) != Health.HEALTHY:
        assert health == Health.RECOVERING
        assert await generator.index.route() == 1
    assert site.journal == ["close 0", "load 2 on 0"]
    assert await generator.held_version.fanout() == [2, 2]


async def test_a_replica_that_recovers_during_an_update_comes_back_with_the_new_weights(
    site, start
):
    generator = await start(replicas=2)
    await update_weights(generator, manifest(1))
    loading = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(replica):
        loading.set()
        await go_on.wait()

    # The hook for version 1 has been passed when the update to version 2 begins.
    generator.on_restart("slow", slow)
    site.replicas[0].kill("kill -9")
    await loading.wait()
    assert site.workers[-1].version == 1
    await update_weights(generator, manifest(2))
    go_on.set()
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.held_version.fanout() == [2, 2]


async def test_a_death_during_the_update_is_mended_by_the_restart(site, start):
    generator = await start(replicas=2)

    async def fatal(manifest):
        raise ReplicaDied("out of memory")

    site.workers[0].update_weights = fatal
    await update_weights(generator, manifest(3))
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.held_version.fanout() == [3, 3]


async def test_an_error_while_loading_names_the_replica(site, start):
    generator = await start(replicas=2)

    async def broken(manifest):
        raise KeyError(f"version {manifest.version}")

    site.workers[1].update_weights = broken
    with pytest.raises(
        FanoutError, match=r"generator\.update_weights failed on 1 of 2 .*replica 1"
    ):
        await update_weights(generator, manifest(3))


async def test_an_update_that_nobody_survives_fails_the_run(site, start):
    generator = await start(restarts=1)
    site.unbuildable = {0}

    async def fatal(manifest):
        raise ReplicaDied("out of memory")

    site.workers[0].update_weights = fatal
    with pytest.raises(RunFailed, match="no replica is left"):
        await update_weights(generator, manifest(3))


async def test_a_replica_that_is_too_late_for_a_version_loads_the_next_one(site, start):
    """The version is dropped while the replica is about to load it: that costs it nothing."""
    generator = await start(replicas=2, restarts=1)
    await update_weights(generator, manifest(1))
    late, go_on = asyncio.Event(), asyncio.Event()

    async def dropped(replica):
        late.set()
        await go_on.wait()
        raise KeyError("no version 1")

    generator.on_restart("weights", dropped)
    site.replicas[0].kill("kill -9")
    await late.wait()
    await update_weights(generator, manifest(2))
    go_on.set()
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.held_version.fanout() == [2, 2]
    assert [kind for kind, _ in site.events] == ["replica_died", "replica_restarted"]
