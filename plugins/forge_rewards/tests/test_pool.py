"""What episodes get, whatever their rewards do. Every reward here runs in a real process."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from forge_core import Completion, Episode, RunFailed, Task, Turn, UsageError
from forge_local.processes.logs import LOG_LIMIT
from forge_rewards import pool as pool_module
from forge_rewards import reward_worker


async def test_parts_are_kept_and_weighted(pool_of, part, episodes):
    pool = pool_of({"a": part(weight=2.0), "b": part(weight=-0.5)})
    scored = episodes("0.25", "3")
    await pool.score(scored)
    assert [episode.rewards for episode in scored] == [{"a": 0.25, "b": 0.25}, {"a": 3, "b": 3}]
    assert [episode.reward for episode in scored] == [0.375, 4.5]
    assert [episode.failures for episode in scored] == [{}, {}]


async def test_what_a_reward_sees(pool_of, part):
    task = Task(id="7", prompt="1+1=", answer="2", metadata={"level": 3})
    first = Completion([5, 6], [-1.0, -1.0], [0, 0], "stop")
    last = Completion([7], [-1.0], [0], "length")
    turns = [
        Turn("prompt", [1, 2, 3]),
        Turn("completion", [5, 6], first),
        Turn("observation", [4]),
        Turn("completion", [7], last),
    ]
    expected = (
        "sample.prompt == '1+1=' and sample.completions[0] == 'first' and sample.task.id == '7' "
        "and sample.task.metadata['level'] == 3 and sample.finish_reason == 'length' "
        "and sample.completion_length == 3"
    )
    episode = Episode(task, turns, "1+1=", ["first", f"return {expected}"])
    await pool_of({"a": part()}).score([episode])
    assert episode.failures == {}
    assert episode.reward == 1.0


FAILURES = {
    "raise no verdict\nsecond line": "ValueError: no verdict",
    "return None": "TypeError: the reward returned None, not a number",
    "return 'one'": "TypeError: the reward returned 'one', not a number",
    "return float('nan')": "ValueError: the reward returned nan",
    "return float('inf')": "ValueError: the reward returned inf",
    "sys.exit 3": "SystemExit: 3",
    "exit 3": "the process ended with exit code 3",
    "segfault": "the process was killed by SIGSEGV",
    "hang": "deadline of 2 s passed",
}


async def test_a_failure_costs_that_sample_its_reward_and_nobody_else(pool_of, part, episodes):
    pool = pool_of({"a": part(deadline=2.0, failure_reward=-1.0, weight=2.0)})
    texts = [text for failing in FAILURES for text in ("1", failing)]
    scored = episodes(*texts, "0.5")
    await pool.score(scored)
    for episode, cause in zip(scored[1::2], FAILURES.values(), strict=True):
        assert episode.failures == {"a": cause}
        assert episode.rewards == {"a": -1.0}
        assert episode.reward == -2.0
    assert [episode.reward for episode in scored[::2]] == [2.0] * len(FAILURES) + [1.0]
    assert not any(episode.failures for episode in scored[::2])
    metrics = pool.metrics()
    assert (metrics["calls"], metrics["failures/a"]) == (19, 9)
    assert (metrics["lost"], metrics["retried"]) == (3, 2)  # a hang is not tried once more
    retried, (kind, message) = pool.heard
    assert retried == (
        "reward_retried",
        "reward 'a' died over 2 of 19 episodes: the process ended with exit code 3 (1), "
        "the process was killed by SIGSEGV (1)",
    )
    assert kind == "reward_failed"
    assert message.startswith("reward 'a' failed on 9 of 19 episodes: ValueError: no verdict (1),")


async def test_a_sample_whose_process_dies_once_is_judged_by_the_next(
    pool_of, part, episodes, tmp_path
):
    pool = pool_of({"a": part(failure_reward=-1.0)})
    scored = episodes("1", f"exit-once {tmp_path / 'one'}", "2", f"exit-once {tmp_path / 'two'}")
    await pool.score(scored)
    assert [episode.reward for episode in scored] == [1.0, 1.0, 2.0, 1.0]
    assert not any(episode.failures for episode in scored)
    metrics = pool.metrics()
    assert (metrics["calls"], metrics["lost"], metrics["retried"]) == (4, 0, 2)
    (event,) = pool.heard
    assert event == (
        "reward_retried",
        "reward 'a' died over 2 of 4 episodes: the process was killed by SIGKILL (2)",
    )


async def test_a_long_message_is_cut(pool_of, part, episodes):
    scored = episodes("return 'é' * 9000", "1")
    await pool_of({"a": part()}).score(scored)
    assert scored[1].reward == 1.0
    assert 100 < len(scored[0].failures["a"]) <= 500


async def test_the_deadline_is_each_samples_own(pool_of, part, episodes):
    pool = pool_of({"a": part(deadline=1.5)})
    scored = episodes(*["sleep 0.25"] * 8)
    await pool.score(scored)
    assert [episode.reward for episode in scored] == [1.0] * 8


async def test_parts_have_deadlines_of_their_own(pool_of, part, episodes):
    pool = pool_of({"patient": part(deadline=5.0), "hasty": part(deadline=0.1)})
    scored = episodes("sleep 0.3", "1")
    await pool.score(scored)
    assert scored[0].rewards == {"patient": 1.0, "hasty": 0.0}
    assert list(scored[0].failures) == ["hasty"]


async def test_a_blocked_event_loop_makes_no_sample_late(pool_of, part, episodes):
    pool = pool_of({"a": part(deadline=1.5)})
    await pool.score(episodes("1"))
    scored = episodes(*["sleep 0.05"] * 4)
    scoring = asyncio.ensure_future(pool.score(scored))
    await asyncio.sleep(0.02)
    time.sleep(2.0)  # a trainer's step
    await scoring
    assert [episode.failures for episode in scored] == [{}] * 4


async def test_a_hang_ends_also_while_the_event_loop_is_blocked(pool_of, part, episodes):
    pool = pool_of({"a": part(deadline=0.1)})
    await pool.score(episodes("1"))
    before = set(threading.enumerate())
    scored = episodes("hang", "1")
    scoring = asyncio.ensure_future(pool.score(scored))
    await asyncio.sleep(0.02)
    time.sleep(0.3)
    await scoring
    assert scored[0].failures == {"a": "deadline of 0.1 s passed"}
    assert not set(threading.enumerate()) - before


async def test_a_part_that_fails_everywhere_fails_the_run_in_one_line(pool_of, part, episodes):
    pool = pool_of({"good": part(), "math": part()})
    with pytest.raises(RunFailed) as caught:
        await pool.score(episodes(*["raise unbalanced"] * 64))
    assert str(caught.value) == (
        "reward 'good' failed on 64 of 64 episodes: ValueError: unbalanced"
    )
    assert caught.value.exit_code == 1


async def test_other_causes_are_counted_in_that_line(pool_of, part, episodes):
    pool = pool_of({"math": part()})
    with pytest.raises(RunFailed, match=r"on 3 of 3 episodes: ValueError: b \(and 1 other cause\)"):
        await pool.score(episodes("raise b", "raise c", "raise b"))


async def test_a_single_episode_cannot_show_a_bug(pool_of, part, episodes):
    scored = episodes("raise b")
    await pool_of({"math": part(failure_reward=-1.0)}).score(scored)
    assert scored[0].reward == -1.0


async def test_a_part_that_hangs_everywhere_fails_before_it_was_tried_everywhere(
    pool_of, part, episodes, monkeypatch
):
    monkeypatch.setattr(reward_worker, "MAX_LOST_SAMPLES", 2)
    pool = pool_of({"math": part(deadline=0.5)})
    with pytest.raises(RunFailed) as caught:
        await pool.score(episodes(*["hang"] * 64))
    assert str(caught.value) == (
        "reward 'math' failed on the first 2 of 64 episodes: deadline of 0.5 s passed"
    )
    # One that is judged shows that the part works; then every hang is the sample's own.
    scored = episodes("1", *["hang"] * 2)
    await pool.score(scored)
    assert [len(episode.failures) for episode in scored] == [0, 1, 1]


async def test_a_hard_task_fails_nothing_and_many_in_a_row_do(pool_of, part, episodes, monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_LOST_SAMPLES", 3)
    pool = pool_of({"math": part(failure_reward=-1.0)})

    def group(*completions):
        of_one_task = episodes(*completions)
        for episode in of_one_task:
            episode.task = of_one_task[0].task
        return of_one_task

    await pool.score(group("1", "1"))  # it works
    for _ in range(2):
        scored = group("raise b", "raise b")
        await pool.score(scored)
        assert [episode.reward for episode in scored] == [-1.0, -1.0]
    await pool.score(group("raise b", "1"))
    for _ in range(2):
        await pool.score(group("raise b", "raise b"))
    with pytest.raises(RunFailed) as caught:
        await pool.score(group("raise b", "raise b"))
    assert str(caught.value) == (
        "reward 'math' failed on every episode of 3 calls in a row: ValueError: b"
    )


async def test_a_part_that_never_worked_fails_on_the_second_task(pool_of, part, episodes):
    pool = pool_of({"math": part()})
    first, second = episodes("raise b", "raise b")
    for _ in range(2):
        await pool.score([first])
    with pytest.raises(RunFailed, match="every episode of 3 calls in a row: ValueError: b"):
        await pool.score([second])


async def test_a_part_that_never_worked_fails_at_the_end(pool_of, part, episodes):
    pool = pool_of({"math": part()})
    pool.check_judged()  # nothing was asked
    (of_one_task,) = episodes("raise b")
    await pool.score([of_one_task, of_one_task])
    with pytest.raises(RunFailed, match="reward 'math' failed on 2 of 2 episodes: ValueError: b"):
        pool.check_judged()
    await pool.score(episodes("1"))
    pool.check_judged()


async def test_an_episode_without_its_reward_is_left_out(pool_of, part, episodes):
    pool = pool_of(
        {"math": part(failure_reward=None), "form": part(failure_reward=-1.0, weight=0.5)}
    )
    failed, judged = episodes("raise b", "2")
    await pool.score([failed, judged])
    assert (failed.left_out, failed.rewards, failed.reward) == (True, {"form": -1.0}, -0.5)
    assert list(failed.failures) == ["math", "form"]
    assert (judged.left_out, judged.reward) == (False, 3.0)


async def test_the_report_of_a_crash_brings_the_end_of_the_log(pool_of, part, episodes):
    pool = pool_of({"math": part()})
    with pytest.raises(RunFailed) as caught:
        await pool.score(episodes("segfault", "segfault"))
    assert any("Segmentation fault" in line for line in caught.value.log_tail)


async def test_printing_and_reading_do_not_touch_the_channel(
    pool_of, part, episodes, tmp_path, capfd
):
    pool = pool_of({"a": part()})
    scored = episodes("1", "print hello there", "2")
    await pool.score(scored)
    assert [episode.reward for episode in scored] == [1.0, 0.0, 2.0]  # stdin is empty
    assert [episode.failures for episode in scored] == [{}] * 3
    await pool.close()
    log = (tmp_path / "rewards.log").read_text()
    for line in ("hello there", "to the descriptor", "from a child"):
        assert line in log
    assert capfd.readouterr() == ("", "")


async def test_a_reward_that_prints_a_lot_fills_no_disk(pool_of, part, episodes, tmp_path):
    pool = pool_of({"a": part()}, replicas=2)
    scored = episodes(*["flood 60000000"] * 4)
    await pool.score(scored)
    await pool.close()
    assert [episode.reward for episode in scored] == [1.0] * 4
    sizes = {file.name: file.stat().st_size for file in tmp_path.glob("rewards.log*")}
    assert set(sizes) == {"rewards.log", "rewards.log.1"}
    assert all(size <= LOG_LIMIT + (1 << 16) for size in sizes.values())


async def test_several_workers_judge_in_parallel_and_in_order(pool_of, part, episodes):
    pool = pool_of({"a": part(), "b": part()}, replicas=3)
    scored = episodes(*[f"{index / 8}" for index in range(40)], "exit 1", "7", "raise x")
    await pool.score(scored)
    expected = [index / 8 for index in range(40)] + [0.0, 7.0, 0.0]
    assert [episode.rewards for episode in scored] == [{"a": r, "b": r} for r in expected]
    sleepers = episodes(*["sleep 0.3"] * 9)
    started = time.monotonic()
    await pool.score(sleepers)
    assert time.monotonic() - started < 18 * 0.3


async def test_calls_at_once_share_the_workers(pool_of, part, episodes):
    pool = pool_of({"a": part()}, replicas=2)
    calls = [episodes("pid", "pid", f"{number}") for number in range(6)]
    await asyncio.gather(*(pool.score(call) for call in calls))
    assert [call[2].reward for call in calls] == [0, 1, 2, 3, 4, 5]
    assert len({episode.reward for call in calls for episode in call[:2]}) == 2


async def test_one_process_serves_many_calls(pool_of, part, episodes):
    pool = pool_of({"a": part()})
    first, second = episodes("pid"), episodes("pid")
    await pool.score(first)
    await pool.score(second)
    assert first[0].reward == second[0].reward


async def test_no_episodes_and_no_parts_cost_no_process(pool_of, part, episodes):
    before = set(threading.enumerate())
    empty, without_parts = pool_of({"a": part()}), pool_of({})
    await empty.score([])
    await without_parts.score(episodes("1"))
    assert empty.metrics()["calls"] == without_parts.metrics()["calls"] == 0
    assert not set(threading.enumerate()) - before


async def test_a_process_imports_nothing_heavy_by_itself(pool_of, part, episodes):
    scored = episodes("imported torch", "imported transformers", "imported pydantic")
    await pool_of({"a": part()}).score(scored)
    assert [episode.reward for episode in scored] == [0.0, 0.0, 1.0]


async def test_a_reward_that_cannot_be_built_fails_the_run(pool_of, part, episodes):
    with pytest.raises(RunFailed, match="reward 'a' cannot be built: KeyError: 'missing'"):
        await pool_of({"a": part(fault="bug")}).score(episodes("1"))
    with pytest.raises(RunFailed, match="did not start: the process ended with exit code 7"):
        await pool_of({"a": part(fault="exit")}).score(episodes("1"))


async def test_a_usage_error_in_build_stays_one(pool_of, part, episodes):
    with pytest.raises(UsageError, match=r"scripted\.fault: choose another one"):
        await pool_of({"a": part(fault="usage")}).score(episodes("1"))


async def test_512_samples_cost_little(pool_of, part, episodes):
    pool = pool_of({"a": part()})
    scored = episodes(*["answer 2"] * 512)
    await pool.score(scored)
    started = time.perf_counter()
    await pool.score(scored)
    assert time.perf_counter() - started < 5  # 7 ms on an idle core; not a process for each
    assert sum(episode.reward for episode in scored) == 512
