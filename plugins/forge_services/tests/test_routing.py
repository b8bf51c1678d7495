"""Which replica a call goes to, and when."""

from __future__ import annotations

import asyncio

import pytest

from forge_core import FanoutError, ReplicaDied, RunFailed


async def calls_in_flight(site, count):
    """Wait until that many calls of ``held`` have begun."""
    async with asyncio.timeout(120):
        while len(site.journal) < count:
            await asyncio.sleep(0)


async def test_route_takes_the_least_loaded_and_breaks_ties_by_index(site, start):
    generator = await start(replicas=3)
    pending = [asyncio.ensure_future(generator.held.route()) for _ in range(4)]
    await calls_in_flight(site, 4)
    assert site.journal == ["call 0", "call 1", "call 2", "call 0"]
    site.workers[2].gate.set()
    await pending[2]
    assert await generator.index.route() == 2  # it is idle, 0 has two, 1 has one
    for worker in site.workers:
        worker.gate.set()
    assert await asyncio.gather(*pending) == [0, 1, 2, 0]


async def test_idle_replicas_are_chosen_in_the_same_order_on_every_run(start):
    generator = await start(replicas=3)
    assert [await generator.index.route() for _ in range(5)] == [0] * 5


async def test_calls_beyond_the_concurrency_wait_in_order_of_arrival(site, start):
    generator = await start(concurrency=2)
    finished = []

    async def call(number):
        await generator.held.route()
        finished.append(number)

    pending = [asyncio.ensure_future(call(number)) for number in range(5)]
    await calls_in_flight(site, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(site.journal) == 2
    metrics = generator.metrics()
    assert metrics["in_flight"] == 2
    assert metrics["queued"] == 3
    site.workers[0].gate.set()
    await asyncio.gather(*pending)
    assert finished == [0, 1, 2, 3, 4]
    assert generator.metrics()["queue_wait_mean"] > 0


async def test_a_call_cancelled_in_the_queue_or_in_flight_gives_its_place_back(site, start):
    generator = await start(concurrency=1)
    running = asyncio.ensure_future(generator.held.route())
    queued = asyncio.ensure_future(generator.held.route())
    third = asyncio.ensure_future(generator.index.route())
    await calls_in_flight(site, 1)
    queued.cancel()
    running.cancel()
    assert await third == 0
    assert running.cancelled()
    assert queued.cancelled()
    assert generator.metrics()["in_flight"] == 0
    assert len(site.journal) == 1


async def test_fanout_returns_results_in_the_order_of_replicas(start):
    generator = await start(replicas=3)
    assert await generator.index.fanout() == [0, 1, 2]


async def test_fanout_does_not_queue_behind_routed_calls(site, start):
    generator = await start(replicas=2, concurrency=1)
    pending = [asyncio.ensure_future(generator.held.route()) for _ in range(6)]
    await calls_in_flight(site, 2)
    assert await generator.index.fanout() == [0, 1]
    for worker in site.workers:
        worker.gate.set()
    await asyncio.gather(*pending)


async def test_a_partial_fanout_names_each_replica_that_failed(start):
    generator = await start(replicas=4)
    with pytest.raises(FanoutError) as caught:
        await generator.fail.fanout(1, 3)
    assert str(caught.value) == (
        "generator.fail failed on 2 of 4 replicas: replica 1: ValueError: no good on 1; "
        "replica 3: ValueError: no good on 3"
    )
    assert set(caught.value.failures) == {1, 3}
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_exception_reaches_the_caller_and_the_replica_lives_on(site, start):
    generator = await start()
    with pytest.raises(ValueError, match="no good on 0") as caught:
        await generator.fail.route(0)
    assert "in fail() on replica 0 of generator worker" in caught.value.__notes__
    assert await generator.index.route() == 0
    assert len(site.workers) == 1
    assert generator.metrics()["errors"] == 1


async def test_a_session_stays_on_one_replica_whatever_its_load(site, start):
    generator = await start(replicas=2)
    async with generator.session() as first:
        pending = [asyncio.ensure_future(generator.held.route()) for _ in range(3)]
        await calls_in_flight(site, 3)
        assert site.journal == [f"call {first}"] * 3
        site.workers[first].gate.set()
        assert await asyncio.gather(*pending) == [first] * 3
    assert await generator.index.fanout() == [0, 1]


async def test_sessions_spread_over_replicas_also_before_their_first_call(start):
    generator = await start(replicas=3)
    everyone = asyncio.Barrier(6)

    async def converse():
        async with generator.session() as replica:
            await everyone.wait()
            assert await generator.index.route() == replica
            return replica

    assert sorted(await asyncio.gather(*(converse() for _ in range(6)))) == [0, 0, 1, 1, 2, 2]


async def test_a_full_session_replica_does_not_hold_up_the_others(site, start):
    generator = await start(replicas=2, concurrency=1)
    async with generator.session() as mine:
        blocked = [asyncio.ensure_future(generator.held.route()) for _ in range(2)]
        await calls_in_flight(site, 1)
    assert await generator.index.route() == 1 - mine
    site.workers[mine].gate.set()
    assert await asyncio.gather(*blocked) == [mine, mine]


async def test_a_session_whose_replica_dies_says_so_and_does_not_move(site, start):
    generator = await start(replicas=2)
    async with generator.session() as mine:
        with pytest.raises(ReplicaDied, match=f"the session of 'generator' was on replica {mine}"):
            await generator.die.route()
        with pytest.raises(ReplicaDied, match="out of memory; begin a new session"):
            await generator.index.route()
    assert await generator.index.route() == 1 - mine


async def test_a_session_call_in_the_queue_hears_of_the_death(site, start):
    generator = await start(concurrency=1)
    async with generator.session():
        calls = [asyncio.ensure_future(generator.held.route()) for _ in range(2)]
        await calls_in_flight(site, 1)
        site.replicas[0].kill("kill -9")
        for call in calls:
            with pytest.raises(ReplicaDied, match="kill -9"):
                await call


@pytest.mark.parametrize("misuse", ["call", "call_one", "choose"])
async def test_a_call_without_an_adverb_names_the_adverbs(start, misuse):
    generator = await start()
    with pytest.raises(AttributeError, match=r"generator\.index\.route\(\.\.\.\) for one"):
        getattr(generator.index, misuse)
    with pytest.raises(TypeError, match=r"generator\.index\.fanout\(\.\.\.\) for all"):
        generator.index()
    with pytest.raises(TypeError, match=r"async with generator\.session\(\)"):
        await generator.index()


async def test_an_unknown_method_is_named(start):
    generator = await start()
    with pytest.raises(AttributeError, match="has no method 'genrate'"):
        await generator.genrate.route()


async def test_calls_on_a_closed_service_are_refused(start):
    generator = await start()
    await generator.close()
    for call in (generator.index.route, generator.index.fanout):
        with pytest.raises(RunFailed, match="service 'generator' is closed"):
            await call()


async def test_round_robin_takes_each_in_turn_and_passes_over_full_ones(site, start):
    generator = await start(replicas=3, routing="round_robin", concurrency=1)
    assert [await generator.index.route() for _ in range(4)] == [0, 1, 2, 0]
    held = asyncio.ensure_future(generator.held.route())
    await calls_in_flight(site, 1)
    assert site.journal == ["call 1"]
    assert [await generator.index.route() for _ in range(4)] == [2, 0, 2, 0]
    site.workers[1].gate.set()
    assert await held == 1


async def test_sticky_keeps_an_episode_and_the_tasks_it_starts_on_one_replica(site, start):
    generator = await start(replicas=2, routing="sticky")
    everyone = asyncio.Barrier(4)

    async def episode():
        first = await generator.held.route()
        await everyone.wait()
        turns = [await generator.index.route() for _ in range(3)]
        turns += await asyncio.gather(*(generator.index.route() for _ in range(3)))
        assert set(turns) == {first}
        return first

    episodes = [asyncio.ensure_future(episode()) for _ in range(4)]
    await calls_in_flight(site, 4)
    for worker in site.workers:
        worker.gate.set()
    assert sorted(await asyncio.gather(*episodes)) == [0, 0, 1, 1]


async def test_sticky_waits_for_a_full_replica_and_leaves_a_dead_one(site, start):
    generator = await start(replicas=2, routing="sticky", concurrency=1)
    assert await generator.index.route() == 0
    held = asyncio.ensure_future(generator.held.route())
    await calls_in_flight(site, 1)
    waiting = asyncio.ensure_future(generator.index.route())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    site.workers[0].gate.set()
    assert await asyncio.gather(held, waiting) == [0, 0]
    site.spawn_gate.clear()
    site.replicas[0].kill("kill -9")
    async with asyncio.timeout(120):
        while generator.status().replicas[0].health == "healthy":
            await asyncio.sleep(0)
    assert await generator.index.route() == 1
    site.spawn_gate.set()


async def test_prefix_goes_where_the_longest_part_of_the_prompt_went_before(start):
    generator = await start(replicas=3, routing="prefix")
    system, other = list(range(40)), list(range(100, 148))

    async def call(prompt):
        return await generator.slow_index.route(prompt)

    assert await asyncio.gather(*(call(prompt) for prompt in (system, other, [7] * 20))) == [
        0,
        1,
        2,
    ]
    # A longer conversation, and another one that shares two blocks with the first.
    assert await call([*system, *range(500, 540)]) == 0
    assert await call([*other[:32], 9, 9, 9]) == 1
    assert await call([*[7] * 16, 1, 2, 3]) == 2
    # Nothing in common, or too little: the least loaded.
    assert await call([1, 2, 3]) == 0
    assert await call("text") == 0


async def test_prefix_takes_another_when_the_one_that_knows_it_is_full(site, start):
    generator = await start(replicas=2, routing="prefix", concurrency=1)
    prompt = list(range(32))
    assert await generator.slow_index.route(prompt) == 0
    held = asyncio.ensure_future(generator.held.route())
    await calls_in_flight(site, 1)
    assert await generator.slow_index.route(prompt) == 1
    site.workers[0].gate.set()
    assert await held == 0


async def test_a_lap_tells_what_happened_since_the_last(site, start):
    generator = await start()
    await generator.index.route()
    first = generator.interval_metrics()
    assert first["calls"] == 1
    assert first["call_seconds"] > 0
    with pytest.raises(RunFailed):
        await generator.die.route()
    second = generator.interval_metrics()
    assert (second["calls"], second["retries"]) == (0, 2)
    assert generator.interval_metrics()["retries"] == 0
