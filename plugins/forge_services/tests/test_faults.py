"""Deaths, retries, restarts, and the end of a service."""

from __future__ import annotations

import asyncio
import time

import pytest

from forge_core import FanoutError, ReplicaDied, RunFailed, ServiceOptions
from forge_services import Health


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


def kinds(site):
    return [kind for kind, _ in site.events]


async def test_a_call_on_a_dying_replica_is_made_again_on_another(site, start):
    generator = await start(replicas=2)
    assert await generator.die.route(0) == 1
    assert generator.metrics()["retries"] == 1
    assert generator.status().replicas[0].health == Health.RECOVERING
    assert generator.status().replicas[0].cause == "out of memory"
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert [await generator.index.route(), await generator.index.fanout()] == [0, [0, 1]]
    assert kinds(site) == ["replica_died", "replica_restarted"]
    assert site.events[0][1] == "generator: replica 0 died: out of memory"
    assert site.journal == ["close 0"]  # the dead one was closed, too


async def test_calls_in_flight_move_when_only_the_runtime_notices_the_death(site, start):
    generator = await start(replicas=2)
    calls = [asyncio.ensure_future(generator.held.route()) for _ in range(4)]
    await until(lambda: len(site.journal) == 4)
    site.workers[1].gate.set()
    site.replicas[0].kill("kill -9")
    assert await asyncio.gather(*calls) == [1, 1, 1, 1]
    assert generator.metrics()["in_flight"] == 0


async def test_a_timeout_inside_a_component_is_not_taken_for_a_death(site, start):
    generator = await start()
    site.workers[0].index = lambda: (_ for _ in ()).throw(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        await generator.index.route()
    assert generator.status().health == Health.HEALTHY


async def test_a_request_that_kills_every_replica_fails_after_the_tries(site, start):
    generator = await start(replicas=3, tries=2)
    with pytest.raises(RunFailed) as caught:
        await generator.die.route()
    assert str(caught.value) == (
        "generator worker (replica 1): died in die() on each of 2 tries: out of memory"
    )
    assert caught.value.replica == 1
    assert generator.metrics()["retries"] == 1
    assert await generator.index.route() == 2


async def test_without_retry_a_death_fails_the_service_and_nothing_restarts(site, start):
    trainer = await start(retry=False)
    with pytest.raises(RunFailed, match=r"generator worker \(replica 0\): died in die\(\): out of"):
        await trainer.die.route()
    with pytest.raises(RunFailed, match=r"no replica is left \(replica 0: out of memory\)"):
        await trainer.index.route()
    assert len(site.workers) == 1
    assert kinds(site) == ["replica_died", "replica_lost", "service_failed"]
    assert trainer.status().health == Health.UNHEALTHY


async def test_a_fanout_is_not_retried_and_names_the_dead(start):
    generator = await start(replicas=3)
    with pytest.raises(FanoutError, match="1 of 3 replicas: replica 2: ReplicaDied: out of memory"):
        await generator.die.fanout(2)
    assert await generator.index.fanout() == [0, 1]


async def test_restarts_are_bounded_and_the_service_goes_on_with_the_rest(site, start):
    generator = await start(replicas=2, restarts=2)
    site.unbuildable = {0}
    assert await generator.die.route(0) == 1
    await until(lambda: generator.status().replicas[0].health == Health.UNHEALTHY)
    assert kinds(site) == [
        "replica_died",
        "replica_restart_failed",
        "replica_restart_failed",
        "replica_lost",
    ]
    assert generator.status().replicas[0].cause == (
        "restart failed: OSError: no space left on device"
    )
    assert await generator.index.fanout() == [1]
    assert generator.status().health == Health.HEALTHY


def test_restarts_are_spread_over_the_outage_limit():
    options = ServiceOptions(outage_limit=600)
    waits = [options.wait_before_restart(in_vain) for in_vain in range(options.restarts)]
    assert waits[0] == 0
    assert waits[1] < 2
    assert waits == sorted(waits)
    assert 0.9 * 600 < sum(waits) < 600


def test_the_first_wait_can_be_set():
    options = ServiceOptions(restarts=4, restart_delay=3)
    assert [options.wait_before_restart(in_vain) for in_vain in range(4)] == [0, 3, 6, 12]
    assert ServiceOptions(restarts=0).wait_before_restart(0) == 0


async def test_an_engine_that_comes_back_within_the_outage_limit_is_used_again(site, start):
    """It is built at once, but cannot load weights until others have restarted it."""
    generator = await start(outage_limit=20, restart_delay=None)
    back_at = time.monotonic() + 1

    async def hook(replica):
        if time.monotonic() < back_at:
            raise ReplicaDied("connection refused")

    generator.on_restart("weights", hook)
    site.replicas[0].kill("connection reset")
    assert await generator.index.route() == 0
    assert "replica_lost" not in kinds(site)
    assert kinds(site).count("replica_restart_failed") >= 3
    failed = next(text for kind, text in site.events if kind == "replica_restart_failed")
    assert failed.endswith("connection refused (again in 0.0 s)")


async def test_a_replica_that_dies_after_each_restart_waits_longer_each_time(site, start):
    generator = await start(replicas=2, restarts=3, restart_delay=0.05)
    deaths = []
    for restart in range(3):
        deaths.append(time.monotonic())
        site.replicas[0 if restart == 0 else -1].kill("kill -9")
        await until(lambda restart=restart: generator.status().replicas[0].restarts == restart + 1)
        await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert time.monotonic() - deaths[1] >= 0.05 + 0.1


async def test_a_replica_that_answers_between_its_deaths_is_started_again_and_again(site, start):
    generator = await start(restarts=2)
    for deaths in range(1, 6):
        site.replicas[-1].kill("kill -9")
        await until(lambda deaths=deaths: generator.status().replicas[0].restarts == deaths)
        assert await generator.index.route() == 0
    assert kinds(site) == ["replica_died", "replica_restarted"] * 5


async def test_when_restarts_are_exhausted_everyone_gets_one_clear_error(site, start):
    generator = await start(replicas=2, restarts=1)
    site.unbuildable = {0, 1}
    calls = [asyncio.ensure_future(generator.die.route()) for _ in range(5)]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, RunFailed)
    with pytest.raises(RunFailed, match="no replica is left") as caught:
        await generator.index.route()
    assert "replica 0: restart failed: OSError: no space left on device" in str(caught.value)
    assert "replica 1: restart failed" in str(caught.value)
    assert kinds(site).count("service_failed") == 1


async def test_nothing_healthy_within_the_limit_fails_the_service(site, start):
    generator = await start(outage_limit=0.05)
    site.spawn_gate.clear()
    with pytest.raises(RunFailed, match=r"no healthy replica for 0\.05 s \(replica 0: out of"):
        await generator.die.route()
    with pytest.raises(RunFailed, match="no healthy replica"):
        await generator.index.fanout()


async def test_calls_wait_out_a_short_outage(site, start):
    generator = await start()
    site.spawn_gate.clear()
    site.replicas[0].kill("kill -9")
    await until(lambda: generator.status().health == Health.RECOVERING)
    routed = asyncio.ensure_future(generator.index.route())
    fanned = asyncio.ensure_future(generator.index.fanout())
    await asyncio.sleep(0.01)
    assert not routed.done()
    site.spawn_gate.set()
    assert await routed == 0
    assert await fanned == [0]


async def test_a_failing_start_stops_what_was_started(site, start):
    site.unbuildable = {1}
    with pytest.raises(RunFailed) as caught:
        await start(replicas=3)
    assert str(caught.value) == (
        "generator worker (replica 1): could not be built: OSError: no space left on device"
    )
    assert sorted(site.journal) == ["close 0", "close 2"]


async def test_close_stops_everything_once_and_may_be_called_again(site, start):
    generator = await start(replicas=2)
    before = len(asyncio.all_tasks())
    running = asyncio.ensure_future(generator.held.route())
    await until(lambda: site.journal)
    await asyncio.gather(generator.close(), generator.close())
    await generator.close()
    assert sorted(site.journal) == ["call 0", "close 0", "close 1"]
    with pytest.raises(RunFailed, match="service 'generator' is closed"):
        await running
    assert generator.status().health == Health.STOPPED
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) < before  # the two watchers are gone


async def test_close_in_the_middle_of_a_recovery(site, start):
    generator = await start()
    site.spawn_gate.clear()
    site.replicas[0].kill("kill -9")
    await until(lambda: generator.status().health == Health.RECOVERING)
    await generator.close()
    site.spawn_gate.set()
    await asyncio.sleep(0.01)
    assert len(site.workers) == 1
    assert kinds(site) == ["replica_died"]


async def test_close_does_not_wait_for_a_replica_that_will_not_stop(site, start):
    generator = await start(replicas=2, stop_limit=0.05)
    site.stop_seconds = 30.0
    started = time.monotonic()
    await generator.close()
    assert time.monotonic() - started < 10.0
    assert site.events[-1] == ("close_failed", "generator: replica 1 did not stop within 0.05 s")


async def test_health_and_metrics_of_a_fresh_service(start):
    generator = await start(replicas=2)
    status = generator.status()
    assert status.health == Health.HEALTHY
    assert [(replica.index, replica.health, replica.restarts) for replica in status.replicas] == [
        (0, Health.HEALTHY, 0),
        (1, Health.HEALTHY, 0),
    ]
    assert await generator.index.route() == 0
    metrics = generator.metrics()
    assert metrics["requests"] == 1
    assert metrics["latency_mean"] > 0


async def test_a_hook_raising_costs_a_restart_and_the_next_attempt_may_pass(site, start):
    generator = await start(restarts=2)
    seen = []

    async def hook(replica):
        seen.append(await replica.call("index"))
        if len(seen) == 1:
            raise ReplicaDied("again")

    generator.on_restart("probe", hook)
    assert await generator.index.route() == 0
    assert seen == []  # only for those that restart
    site.replicas[0].kill("kill -9")
    await until(lambda: generator.status().replicas[0].restarts == 2)
    assert await generator.index.route() == 0
    assert seen == [0, 0]
    assert kinds(site) == ["replica_died", "replica_restart_failed", "replica_restarted"]


async def test_a_death_during_the_first_start_is_mended_by_a_restart(site, start):
    site.stillborn = [0]
    generator = await start(replicas=2)
    assert await generator.index.route() == 1
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.index.fanout() == [0, 1]
    assert kinds(site) == ["replica_died", "replica_restarted"]


async def test_a_death_while_the_others_are_still_being_built_is_not_missed(site, start):
    site.spawn_gate.clear()
    site.first_through = 0
    starting = asyncio.ensure_future(start(replicas=2))
    await until(lambda: site.replicas)
    site.replicas[0].kill("kill -9")
    await asyncio.sleep(0.01)
    site.spawn_gate.set()
    generator = await starting
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.index.fanout() == [0, 1]
    assert kinds(site) == ["replica_died", "replica_restarted"]


async def test_a_component_that_always_dies_while_it_starts_ends_with_its_log(site, start):
    site.stillborn = [0] * 5
    with pytest.raises(RunFailed, match=r"no replica is left \(replica 0: restart failed: .*SEGV"):
        await start(restarts=2)
    assert len(site.stillborn) == 2  # one start and two restarts
    site.stillborn = [0] * 5
    with pytest.raises(RunFailed) as caught:
        await start(restarts=1)
    assert caught.value.log_tail == ("the last words",)


async def test_a_component_that_must_not_retry_fails_at_its_first_death(site, start):
    site.stillborn = [0]
    with pytest.raises(ReplicaDied, match="SEGV"):
        await start(retry=False)


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_call_that_hangs_is_a_death(site, start, blocks):
    generator = await start(replicas=2, deadline=0.5)

    async def hang() -> int:
        if blocks:
            time.sleep(600)
        return await site.workers[0].held()

    site.workers[0].index = hang
    assert await asyncio.gather(generator.index.route(), generator.index.route()) == [1, 1]
    assert site.events[0][1] == (
        "generator: replica 0 died: it hangs: no answer within 0.5 s from index() "
        "(generator.deadline)"
    )
    await until(lambda: generator.status().replicas[0].health == Health.HEALTHY)
    assert await generator.index.fanout() == [0, 1]
