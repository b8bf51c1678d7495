"""A whole run whose generator and trainer are processes of their own, and one of them is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from forge_testing.runs import Run, small_config, until

CONFIG = small_config(
    training={"steps": 6, "batch_size": 64, "learning_rate": 0.01},
    checkpointing={"save_interval": 1},
    evaluation={"interval": None},
    generator={"isolate": True},
    trainer={"isolate": True},
)


def rank(run: Run, service: str) -> int:
    """Process id of a service's only rank, the inner of its two processes."""
    both = run.ranks(service)
    (inner,) = [pid for pid in both if parent(pid) in both]
    return inner


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_generator_comes_back_with_the_current_weights_and_the_run_ends_well(runs):
    run = runs(CONFIG)
    run.until_step(2)
    os.kill(rank(run, "generator"), signal.SIGKILL)
    assert run.end() == 0, run.printed
    assert run.kinds()["replica_died"] == run.kinds()["replica_restarted"] == 1
    records = run.lines("metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    # Sampler and trainer agree on every step: the generator never sampled from old weights.
    assert all(record["mismatch/logprob_abs_mean"] < 1e-4 for record in records)
    assert run.ranks() == []


def test_the_config_says_how_often_a_replica_is_started_again(runs):
    run = runs({**CONFIG, "generator": {"isolate": True, "restarts": 0}})
    run.until_step(2)
    os.kill(rank(run, "generator"), signal.SIGKILL)
    assert run.end() == 1
    assert "no replica is left" in run.printed, run.printed
    assert "was killed by SIGKILL" in run.printed
    assert run.kinds()["replica_lost"] == 1
    assert run.kinds()["replica_restarted"] == 0


def test_a_killed_trainer_ends_the_run_with_its_cause_and_the_checkpoint_resumes(runs):
    run = runs(CONFIG)
    run.until_step(2)
    os.kill(rank(run, "trainer"), signal.SIGKILL)
    assert run.end() == 1
    errors = [line for line in run.printed.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "trainer torch" in errors[0]
    assert "replica 0 of trainer" in errors[0]
    assert "was killed by SIGKILL" in errors[0]
    done = len(run.lines("metrics.jsonl"))
    assert 2 <= done < 6
    run.resume()
    assert run.end() == 0, run.printed
    assert run.lines("metrics.jsonl")[-1]["step"] == 6


def test_a_killed_or_interrupted_controller_leaves_no_process_and_no_shared_memory(runs):
    run = runs(CONFIG)
    run.until_step(2)
    assert rank(run, "trainer") != rank(run, "generator")
    run.process.kill()
    run.process.wait()
    until(lambda: not run.ranks(), limit=120)
    run.resume()
    run.until_step(3)
    assert rank(run, "trainer") != rank(run, "generator")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    assert run.ranks() == []
    assert not [path for path in Path("/dev/shm").iterdir() if run.folder.name in path.name]
