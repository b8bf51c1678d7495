"""What every recipe must do. Inherit it, and say with ``config`` what is run.

.. code-block:: python

    class TestMine(RecipeConformance):
        config = small_config(recipe={"use": "mine"}, training={"steps": 4, "batch_size": 32})
        plugins = (my_package,)  # beside those that are installed

The runs are whole ones: a tiny model, the default engines, this process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forge_core import Forge, RunStopped
from forge_testing.conformance.suite import Suite
from forge_testing.runs import StopAt, lines_of, untimed

WEIGHTS = "model.safetensors"


class RecipeConformance(Suite):
    """Inherit with the ``config`` of a run of one stage and of at least four steps."""

    config: ClassVar[Mapping[str, Any]]
    """The tree of a run with the recipe under test, as ``small_config`` makes it."""

    plugins: ClassVar[Sequence[object]] = ()
    """Plugins that are not installed."""

    tolerance: ClassVar[float] = 1e-3
    """Relative difference of losses that rounding may make where micro-batches are smaller."""

    _runs: ClassVar[dict[type, Path]] = {}

    @pytest.fixture
    def app(self) -> Forge:
        return Forge(plugins=self.plugins)

    @pytest.fixture
    def run(self, app: Forge, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Folder of the run, from its start to its end: one for all tests."""
        if type(self) not in self._runs:
            summary = app.run(self._placed(tmp_path_factory.mktemp("whole")))
            assert summary.outcome == "finished"
            self._runs[type(self)] = summary.folder
        return self._runs[type(self)]

    @pytest.fixture
    def planned(self, app: Forge) -> int:
        """Steps that the recipe plans."""
        _, (steps,) = app.check(self.config)
        assert steps >= 4, "a run of at least four steps is needed"
        return steps

    def test_it_takes_the_steps_that_it_planned(self, run: Path, planned: int) -> None:
        assert [row["step"] for row in lines_of(run / "metrics.jsonl")] == [*range(1, planned + 1)]
        assert (run / "checkpoints" / f"step_{planned}" / WEIGHTS).is_file()

    def test_it_trains(self, run: Path, planned: int) -> None:
        first, last = (run / "checkpoints" / f"step_{step}" / WEIGHTS for step in (1, planned))
        assert first.read_bytes() != last.read_bytes(), "its steps change no weight"

    def test_its_metrics_are_finite_numbers(self, run: Path) -> None:
        for row in untimed(lines_of(run / "metrics.jsonl")):
            for name, value in row.items():
                if name not in ("stage", "timing"):
                    assert isinstance(value, int | float), (
                        f"{name} is {value} in step {row['step']}"
                    )
                    assert math.isfinite(value), f"{name} is {value} in step {row['step']}"

    def test_what_it_trains_is_what_it_samples_from(self, run: Path) -> None:
        """Later episodes come from later weights: what is trained is published."""
        newest: dict[int, int] = {}
        for line in lines_of(run / "episodes.jsonl"):
            step = line["step"]
            newest[step] = max([newest.get(step, -1), *line["versions"]])
        if not newest:
            pytest.skip("it records no episodes")
        first, last = min(newest), max(newest)
        assert newest[last] > newest[first], (
            f"step {last} samples from version {newest[last]}, as step {first}: it never publishes"
        )

    @pytest.mark.parametrize("stop", [2, 4])
    def test_a_run_that_goes_on_ends_the_same(
        self,
        run: Path,
        app: Forge,
        planned: int,
        tmp_path: Path,
        stop: int,
    ) -> None:
        """Ended before the checkpoint of a step, it does that step again and goes on: the same
        metrics, and the same weights bit for bit."""
        with pytest.raises(RunStopped):
            Forge(plugins=[*self.plugins, StopAt(stop)]).run(self._placed(tmp_path))
        (folder,) = (tmp_path / "runs").iterdir()
        app.run(resume=folder)
        rows, resumed = (untimed(lines_of(place / "metrics.jsonl")) for place in (run, folder))
        for row, other in zip(rows, resumed, strict=True):
            differing = [name for name in row if row[name] != other.get(name)]
            assert not differing, (
                f"stopped after step {stop} and resumed, step {row['step']} differs in "
                f"{', '.join(differing)}: what the recipe keeps between steps goes into "
                "stage.recipe_state"
            )
        weights = Path("checkpoints") / f"step_{planned}" / WEIGHTS
        assert (run / weights).read_bytes() == (folder / weights).read_bytes()

    def test_smaller_micro_batches_learn_the_same(
        self, run: Path, app: Forge, tmp_path: Path
    ) -> None:
        """The trainer may split what it is given, to fit its memory."""
        tokens = max(int(row["tokens"]) for row in lines_of(run / "metrics.jsonl"))
        summary = app.run(
            self._placed(tmp_path),
            {
                "trainer": {"max_tokens_per_micro_batch": max(64, tokens // 3)},
                "training": {"steps": 2},
            },
        )
        rows = [lines_of(place / "metrics.jsonl") for place in (run, summary.folder)]
        for row, other in zip(*rows, strict=False):
            assert math.isclose(
                row["loss"], other["loss"], rel_tol=self.tolerance, abs_tol=self.tolerance
            ), f"step {row['step']}: loss {row['loss']}, in smaller micro-batches {other['loss']}"

    def _placed(self, folder: Path) -> dict[str, Any]:
        """The config, for a run in a folder that keeps the checkpoint of each step."""
        places = {"output_dir": str(folder / "runs"), "save_interval": 1, "keep": 1000}
        return {**self.config, "checkpointing": {**self.config.get("checkpointing", {}), **places}}
