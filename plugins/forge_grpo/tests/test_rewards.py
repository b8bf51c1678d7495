"""What each reward pays for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forge_core import DataError, RewardSample, Task
from forge_core.protocols import Reward
from forge_grpo.rewards.exact_match import ExactMatch
from forge_grpo.rewards.math import Math
from forge_grpo.rewards.settings import ExactMatchSettings, MathSettings, ThinkingSettings
from forge_grpo.rewards.thinking import Thinking


def judge(reward: Reward, completion: str, answer: str | None = None, prompt: str = "?") -> float:
    return reward(RewardSample(Task("t", prompt, answer=answer), prompt, completion))


# exact_match


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("46", "46", 1.0),
        (" 46\n", "46", 1.0),
        ("the  red\tfox", "the red fox", 1.0),
        ("46", " 46 ", 1.0),
        ("", "", 1.0),
        ("461", "46", 0.0),
        ("4 6", "46", 0.0),
        ("046", "46", 0.0),
        ("46.", "46", 0.0),
        ("the answer is 46", "46", 0.0),
        ("", "46", 0.0),
        ("Red", "red", 0.0),
    ],
)
def test_exact_match(completion: str, answer: str, expected: float) -> None:
    assert judge(ExactMatch(ExactMatchSettings()), completion, answer) == expected


def test_exact_match_may_ignore_case() -> None:
    reward = ExactMatch(ExactMatchSettings(case_sensitive=False))
    assert judge(reward, "STRASSE", "straße") == 1.0
    assert judge(reward, "red", "blue") == 0.0


# math


RIGHT = [
    ("the answer is 12", "12"),
    ("12+34=46", "46"),
    ("So we get 7. The final answer is 46.", "46"),
    ("maybe 1, maybe 2", "2"),
    (r"Thus \boxed{46}, which is more than 40.", "46"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\frac12}", "1/2"),
    ("0.5", r"\frac{1}{2}"),
    ("1/2", "0.5"),
    (r"$\frac{-1}{2}$", r"-\frac{1}{2}"),
    ("-3", "-3"),
    ("$-3$", "-3"),
    ("1,234", "1234"),
    ("1234", "1,234"),
    ("5.0", "5"),
    ("50%", r"50\%"),
    (r"$50\%$", "0.5"),
    ("50", r"50\%"),
    (r"$\{2, 1\}$", r"\{1,2\}"),
    (r"$(x+1)^2$", "x^2+2x+1"),
    (r"$1 + x$", "x+1"),
    ("$x = 5$", "5"),
    ("5", "x=5"),
    (r"$\sqrt{2}/2$", r"\frac{1}{\sqrt{2}}"),
    (r"$2\pi$", r"2\pi"),
    (r"\boxed{10:30}", "10:30"),
    ("$[1, 2)$", "[1,2)"),
    ("5", "$5$"),
    ("5", r"\boxed{5}"),
    ("5", r"\$5"),
    ("5", "#### 5"),
    (r"\boxed{\text{Monday}}", r"\text{Monday}"),
    ("1/3", "0.333333"),
]

WRONG = [
    ("the answer is 12", "1"),  # a number that occurs in another
    ("1 2 3 4 5 6 7 8 9", "4"),
    ("not 1 but 2", "1"),
    (r"\boxed{1} \boxed{2}", "1"),  # two final answers are one set
    (r"\boxed{1} \boxed{2}", "2"),
    ("-1", "1"),
    ("1", "-1"),
    ("3", "3x"),  # the reference is read whole
    ("1", "1+x"),
    ("10", "10:30"),
    ("2", "2^{10}"),
    ("1", "1,2"),
    ("1.2", "1,2"),
    (r"$\{1, 2\}$", r"\{1,3\}"),
    ("$[1, 2]$", "[1,2)"),
    ("0.33", r"\frac{1}{3}"),
    ("50", "0.5"),
    (r"\boxed{\text{Tuesday}}", r"\text{Monday}"),
    ("", "0"),
    ("I do not know", "1"),
    ("x", "1"),
]


@pytest.mark.parametrize(("completion", "answer"), RIGHT)
def test_math_pays_for_equal_mathematics(completion: str, answer: str) -> None:
    assert judge(Math(MathSettings()), completion, answer) == 1.0


@pytest.mark.parametrize(("completion", "answer"), WRONG)
def test_math_pays_for_nothing_else(completion: str, answer: str) -> None:
    assert judge(Math(MathSettings()), completion, answer) == 0.0


def test_math_compares_numbers_to_its_precision() -> None:
    assert judge(Math(MathSettings(precision=2)), "0.33", "1/3") == 1.0
    assert judge(Math(MathSettings(precision=3)), "0.33", "1/3") == 0.0


@pytest.mark.parametrize("answer", ["", "???", "#", "-"])
def test_math_refuses_a_reference_that_is_no_mathematics(answer: str) -> None:
    with pytest.raises(DataError, match=r"task 't': answer .* is no mathematics"):
        judge(Math(MathSettings()), "5", answer)


@pytest.mark.parametrize("reward", [ExactMatch(ExactMatchSettings()), Math(MathSettings())])
def test_a_task_without_answer_is_an_error(reward: Reward) -> None:
    with pytest.raises(DataError, match="task 't' has no answer"):
        judge(reward, "5", None)


# thinking


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>because</think>46", 1.0),
        ("\n<think>\nbecause\n</think>\n46\n", 1.0),
        ("<think>because</think>", 0.5),
        ("<think>because</think> \n", 0.5),
        ("<think></think>46", 0.5),
        ("<think> </think>46", 0.5),
        ("46", 0.0),
        ("", 0.0),
        ("<think>because 46", 0.0),
        ("because</think>46", 0.0),
        ("46<think>because</think>46", 0.0),
        ("</think>because<think>46", 0.0),
        ("<think>a</think><think>b</think>46", 0.0),
        ("<think>a<think>b</think>46", 0.0),
        ("<think>a</think>b</think>46", 0.0),
        ("<Think>because</Think>46", 0.0),
    ],
)
def test_thinking(completion: str, expected: float) -> None:
    assert judge(Thinking(ThinkingSettings()), completion) == expected


@pytest.mark.parametrize("prompt", ["1+1=<think>", "<|im_start|>assistant\n<think>\n"])
def test_thinking_knows_a_tag_that_the_prompt_opened(prompt: str) -> None:
    reward = Thinking(ThinkingSettings())
    assert judge(reward, "because</think>46", prompt=prompt) == 1.0
    assert judge(reward, "because</think>", prompt=prompt) == 0.5
    assert judge(reward, "46", prompt=prompt) == 0.0
    assert judge(reward, "<think>because</think>46", prompt=prompt) == 0.0


def test_thinking_with_another_tag() -> None:
    reward = Thinking(ThinkingSettings(tag="reasoning"))
    assert judge(reward, "<reasoning>because</reasoning>46") == 1.0
    assert judge(reward, "<think>because</think>46") == 0.0
    with pytest.raises(ValidationError, match="tag"):
        ThinkingSettings(tag="a b")
