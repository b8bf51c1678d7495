"""Faults in runs of the default components: the invariants hold, and the weights are the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_chaos.__main__ import main
from forge_chaos.invariants import violations
from forge_testing.runs import Run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run without faults is kept for the tests after the first."""
    return tmp_path_factory.mktemp("kept") / "undisturbed"


@pytest.fixture
def undisturbed(kept: Path, disturbed: Callable[..., Run]) -> Path:
    """Folder of the run without faults."""
    if not kept.exists():
        run = disturbed(None, name="undisturbed")
        assert run.end() == 0, run.printed
        shutil.copytree(run.folder, kept)
    return kept


def faults(run: Run) -> list[str]:
    """What was injected, in words."""
    lines = run.lines("chaos.jsonl")
    return [line["did"] for line in lines if line.get("did")]


def test_a_generator_that_is_killed_stopped_and_cut_off_changes_nothing(
    undisturbed: Path, disturbed: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = disturbed(
        {
            "seed": 1,
            "kill": {"generator": 1},
            "disconnect": {"generator": 1},
            "delay": {"generator": 1, "trainer": 1, "controller": 1},
            "delay_seconds": 0.3,
        }
    )
    assert run.end() == 0, run.printed
    assert len(faults(run)) == 5, run.printed
    assert run.kinds()["replica_died"] >= 1
    # Calls that are made again form other batches: equal to rounding, not bit for bit.
    arguments = [str(run.folder), "--against", str(undisturbed), "--tolerance", "1e-4"]
    monkeypatch.setattr("sys.argv", ["chaos", *arguments])
    assert main() == 0
    assert capsys.readouterr().out == "7 invariants, 0 violations\n"


@pytest.mark.parametrize("service", ["trainer", "controller"])
def test_a_run_that_is_killed_resumes_to_the_same_weights(
    service: str, undisturbed: Path, disturbed: Callable[..., Run]
) -> None:
    run = disturbed({"seed": 2, "kill": {service: 1}})
    assert run.end() != 0
    assert len(run.lines("metrics.jsonl")) < 8
    run.resume()
    assert run.end() == 0, run.printed
    assert violations(run.folder, undisturbed) == []


def test_a_damaged_checkpoint_is_never_gone_on_from(
    undisturbed: Path, disturbed: Callable[..., Run]
) -> None:
    """It is damaged in a step, and the trainer dies in the next."""
    run = disturbed({"seed": 6, "kill": {"trainer": 1}, "corrupt": {"checkpoint": 1}})
    run.end()
    run.resume()
    code = run.end()
    assert any("flipped" in did for did in faults(run))
    if code == 0:
        assert violations(run.folder, undisturbed) == []
    else:
        assert "damaged" in run.printed


def test_weights_damaged_on_their_way_are_never_sampled_from(
    undisturbed: Path, disturbed: Callable[..., Run]
) -> None:
    run = disturbed({"seed": 3, "corrupt": {"weights": 2}})
    if run.end() != 0:
        # A transport that checks its index names the damage; any other ends in the replica's proof.
        named = ("update_weights failed", "is damaged", "with checksum")
        assert any(words in run.printed for words in named), run.printed
        run.resume()
        assert run.end() == 0, run.printed
    assert violations(run.folder, undisturbed) == []


def test_a_fault_that_cannot_be_injected_is_a_violation(disturbed: Callable[..., Run]) -> None:
    """A test that injects nothing proves nothing."""
    run = disturbed({"kill": {"generator": 1}}, "training.steps=3", generator={}, trainer={})
    assert run.end() == 0, run.printed
    (found,) = violations(run.folder)
    assert "no process of its own; generator.isolate=true gives it one" in found


def tampered(folder: Path, name: str, change: Callable[[list[Any]], None]) -> None:
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    change(lines)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def last_episodes(lines: list[Any]) -> Any:
    return [line for line in lines if "episodes" in line][-1]["episodes"]


def swap(lines: list[Any]) -> None:
    one, other = (line for line in lines if line.get("episodes_of") in (2, 3))
    one["episodes"], other["episodes"] = other["episodes"], one["episodes"]


TAMPERING: dict[str, tuple[str, Callable[[list[Any]], None]]] = {
    "metrics_complete": ("metrics.jsonl", lambda lines: lines.pop(1)),
    "episodes_once": ("chaos.jsonl", lambda lines: last_episodes(lines).pop()),
    "order_of_tasks": ("chaos.jsonl", swap),
    "versions_true": ("chaos.jsonl", lambda lines: last_episodes(lines)[0].__setitem__(1, [99])),
    "faults_injected": ("chaos.jsonl", lambda lines: lines[0].update(planned=1)),
}


def test_each_invariant_finds_what_breaks_it(disturbed: Callable[..., Run]) -> None:
    run = disturbed({}, "training.steps=4", generator={}, trainer={})
    assert run.end() == 0, run.printed
    assert violations(run.folder) == []
    for invariant, (name, change) in TAMPERING.items():
        copy = run.folder.with_name(f"copy-{invariant}")
        shutil.copytree(run.folder, copy)
        tampered(copy, name, change)
        found = violations(copy)
        assert any(line.startswith(f"{invariant}: ") for line in found), (invariant, found)
        shutil.rmtree(copy)
    weights = run.folder / "checkpoints" / "step_4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert any(line.startswith("checkpoints_whole: ") for line in violations(run.folder))
