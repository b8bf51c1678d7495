"""What reward processes get of the environment, what they may use, and what they leave behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from forge_core import RewardComponent, RewardPart, Selection, Settings
from forge_rewards.confinement import Confinement


class Greedy:
    """Takes what the completion names."""

    def __call__(self, sample):
        command, _, argument = sample.completion.partition(" ")
        match command:
            case "variable":
                program = f"import os; print({argument!r} in os.environ)"
                printed = subprocess.check_output([sys.executable, "-c", program], text=True)
                assert printed == f"{argument in os.environ}\n"
                return float(argument in os.environ)
            case "memory":
                bytearray(int(argument) << 20)
            case "file":
                with tempfile.TemporaryFile() as file:
                    file.write(bytes(int(argument) << 20))
            case "descriptors":
                kept = [open(os.devnull) for _ in range(int(argument))]  # noqa: SIM115
                return float(len(kept))
            case "programs":
                for _ in range(int(argument)):
                    subprocess.Popen(["sleep", "600"], start_new_session=True)
                time.sleep(600 if int(argument) > 20 else 0)
            case "compute":
                while True:
                    pass
            case "core":
                return resource.getrlimit(resource.RLIMIT_CORE)[0]
            case "temporary":
                folder = Path(tempfile.mkdtemp())
                (folder / "program.py").write_text("print()")
                (folder / "closed").mkdir(mode=0)
                Path(argument).write_text(f"{folder} {os.environ['TMPDIR']}")
            case "hang":
                self(type(sample)(**{**_fields(sample), "completion": f"temporary {argument}"}))
                time.sleep(600)
        return 1.0


def _fields(sample):
    return {name: getattr(sample, name) for name in sample.__dataclass_fields__}


class NoSettings(Settings):
    pass


def build_greedy(settings, context):
    return Greedy()


@pytest.fixture
def greedy():
    def make(deadline=60.0):
        component = RewardComponent(
            name="greedy", settings=NoSettings, build=build_greedy, summary=""
        )
        selection = Selection(family="reward", component=component, settings=NoSettings())
        return {"greedy": RewardPart(selection=selection, deadline=deadline)}

    return make


async def test_keys_are_inherited_only_by_name(pool_of, greedy, episodes, monkeypatch):
    secret = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "GH_TOKEN")
    for name in (*secret, "OMP_NUM_THREADS", "HF_HOME", "LC_ALL"):
        monkeypatch.setenv(name, "1")
    kept = ("PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "LC_ALL", "TMPDIR")
    named = Confinement(inherit_env=("OPENAI_*", "AWS_SECRET_ACCESS_KEY"))
    for confinement, given in ((Confinement(), ()), (named, ("OPENAI_API_KEY", secret[2]))):
        scored = episodes(*(f"variable {name}" for name in (*secret, *kept)))
        await pool_of(greedy(), confinement=confinement).score(scored)
        assert not any(episode.failures for episode in scored)
        seen = {e.completion_texts[0].split()[1] for e in scored if e.reward == 1.0}
        assert seen == {*kept, *given}


async def test_the_variables_of_the_workers_section_reach_rewards(pool_of, greedy, episodes):
    scored = episodes("variable JUDGE_TOKEN")
    await pool_of(greedy(), env={"JUDGE_TOKEN": "1"}).score(scored)
    assert scored[0].reward == 1.0


async def test_what_goes_over_a_limit_costs_that_sample_its_reward(pool_of, greedy, episodes):
    confinement = Confinement(
        memory_gib=1.0, cpu_seconds=1, processes=20, open_files=100, file_gib=2**-7
    )
    failing = {
        "memory 2000": "MemoryError",
        "file 9": "OSError: [Errno 27] File too large",
        "descriptors 101": "OSError: [Errno 24] Too many open files: '/dev/null'",
        "programs 30": "the process was killed because it had started too many processes",
        "compute": "the process was killed by SIGXCPU",
    }
    fine = ("memory 100", "file 1", "descriptors 50", "programs 5", "core")
    scored = episodes(*failing, *fine)
    await pool_of(greedy(), confinement=confinement).score(scored)
    for episode, cause in zip(scored, failing.values(), strict=False):
        assert episode.failures == {"greedy": cause}
    assert [e.reward for e in scored[len(failing) :]] == [1.0, 1.0, 50.0, 1.0, 0.0]


async def test_temporary_files_go_with_the_process(pool_of, greedy, episodes, tmp_path, until_gone):
    abandoned = Path(tempfile.mkdtemp(prefix="forge-rewards-"))  # by a run that was killed
    os.utime(abandoned, (0, 0))
    pool = pool_of(greedy(deadline=3.0))
    killed, ended = tmp_path / "killed", tmp_path / "ended"
    await pool.score(episodes(f"hang {killed}", f"temporary {ended}"))
    first, second = (path.read_text().split() for path in (killed, ended))
    assert first[1] != second[1]
    assert Path(second[0], "program.py").is_file()
    await pool.close()
    limit = time.monotonic() + 60
    while any(Path(folder).exists() for folder in (*first, *second, abandoned)):
        assert time.monotonic() < limit
        time.sleep(0.01)
