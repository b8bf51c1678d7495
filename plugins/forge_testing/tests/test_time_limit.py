"""A test of a conformance suite that never returns fails, and the next one runs."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HANGS = """
    import asyncio, time
    import pytest
    from forge_core import Task
    from forge_testing.conformance.environment import EnvironmentConformance

    class Hangs:
        max_turns = 1
        async def start(self, task, seed):
            return self
        prompt = "?"
        async def respond(self, completion, finish_reason: str = "stop"):
            WAIT

    class TestMine(EnvironmentConformance):
        LIMIT

        @pytest.fixture
        def environment(self):
            return Hangs()
"""


@pytest.mark.parametrize("wait", ["await asyncio.sleep(3600)", "while True: pass"])
def test_it_fails_and_the_next_one_runs(pytester: pytest.Pytester, wait: str) -> None:
    pytester.makepyfile(HANGS.replace("WAIT", wait).replace("LIMIT", "time_limit = 1.0"))
    names = "test_an_answer_is_text_a_response_or_the_end or test_prompts_are_text_or_messages"
    result = pytester.runpytest_subprocess("-p", "no:xdist", "-k", names, "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout (>1.0s) from pytest-timeout*"])


def test_a_marker_of_one_s_own_counts(pytester: pytest.Pytester) -> None:
    source = HANGS.replace("WAIT", "await asyncio.sleep(3600)")
    pytester.makepyfile(source.replace("LIMIT", "pytestmark = pytest.mark.timeout(0.5)"))
    names = "test_an_answer_is_text_a_response_or_the_end"
    result = pytester.runpytest_subprocess("-p", "no:xdist", "-k", names, "-o", "asyncio_mode=auto")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Timeout (>0.5s) from pytest-timeout*"])
