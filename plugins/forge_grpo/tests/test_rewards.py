"""What each reward pays for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forge_core import DataError, Reward, RewardSample, Task
from forge_grpo.rewards import math_check
from forge_grpo.rewards.exact_match import ExactMatch
from forge_grpo.rewards.last_number import LastNumber
from forge_grpo.rewards.math import Math
from forge_grpo.rewards.math_check import check_math
from forge_grpo.rewards.thinking import Thinking
from forge_grpo.settings import ExactMatchSettings, MathSettings, ThinkingSettings
from forge_testing.context import bare_context


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


# last_number


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("13", "13", 1.0),
        ("9 + 4 is 13.", "13", 1.0),
        ("9+4=13", "13", 1.0),
        ("4 + 9", "13", 0.0),  # read, not evaluated
        ("13, not 14", "13", 0.0),
        ("the sum is 1,300", "1300", 1.0),
        ("-5", "-5", 1.0),
        ("9-4", "4", 1.0),
        ("13.5", "13", 0.0),
        ("13.5", "5", 0.0),
        ("13, 5", "5", 1.0),
        ("", "13", 0.0),
        ("thirteen", "13", 0.0),
    ],
)
def test_last_number(completion: str, answer: str, expected: float) -> None:
    assert judge(LastNumber(), completion, answer) == expected


@pytest.mark.parametrize("answer", ["thirteen", "1.5", "", None])
def test_last_number_needs_an_answer_that_is_a_whole_number(answer: str | None) -> None:
    with pytest.raises(DataError, match=r"whole number|no answer"):
        judge(LastNumber(), "13", answer)


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
    # The answer tag.
    ("<answer>42</answer>", "42"),
    ("<answer> 42 </answer>", "42"),
    ("<answer>\n42\n</answer>\n", "42"),
    ("2 + 3 = 5 <answer>12</answer>", "12"),
    ("<answer>12</answer> no, <answer>13</answer>", "13"),
    ("<answer>It is 13.</answer>", "13"),
    (r"<answer>\boxed{13}</answer>", "13"),
    ("<answer>$13$</answer>", "13"),
    ("<answer>x^2 + 1</answer>", "x^2+1"),
    ("so <answer>42", "42"),  # a stop string may have taken the closing tag
    # Behind the reasoning.
    (r"<think>\boxed{5}</think> The answer is 6", "6"),
    (r"<think>5</think>\boxed{6}", "6"),
    (r"\boxed{5}</think>6", "6"),
    # Ways to write a number.
    ("1000000", "1e6"),
    ("1e6", "1000000"),
    ("The answer is 1e6.", "1,000,000"),
    ("1.5e-3", "0.0015"),
    ("$1.5e-3$", "0.0015"),
    ("1000", "1 000"),
    ("1 000", "1 000"),
    ("1000", r"1\,000"),
    (r"$1\,000$", "1000"),
    ("1000", "1{,}000"),
    ("\u22125", "-5"),
    ("-5", "\u22125"),
    ("3.50", "$3.5"),
    (r"\boxed{3\frac{1}{2}}", "3 1/2"),
    ("The answer is **46**.", "46"),
    ("**Answer:** 46", "46"),
    ("Natalia sold 48/2 = 24.\n#### 72", "72"),
    ("72", "She sold 48/2 = <<48/2=24>>24 in May.\n#### 72"),
    ("1000,99", "1000.99"),  # no list of two numbers where one is asked for
    ("0.111", "0,111"),
    # Formulas without delimiters.
    ("x^2+1", "x^2+1"),
    ("The answer is x^2+1", "1+x^2"),
    ("pi/2", "pi/2"),
    (r"$\pi/2$", "pi/2"),
    (r"$\ln 2$", "ln 2"),
    (r"$1 - 1/e$", r"$1 - \frac{1}{\mathrm{e}}$"),
    (r"$\frac{\sqrt{2}}{2}$", "sqrt2/2"),
    ("(1, 2)", "(1,2)"),
    ("5 cm", "5 cm"),
    ("5", "5 cm"),
    # Words.
    ("A", "A"),
    ("The answer is A.", "A"),
    ("(A)", "A"),
    ("Answer: (b) because it is", "B"),
    ("A. Paris", "A"),
    ("The correct answer is: option B", "(B)"),
    (r"$\boxed{\text{A}}$", "A"),
    ("So the answer is yes.", "Yes"),
    ("Paris", "Paris"),
    ("It is in France.\nParis.", "Paris"),
    ("<answer>paris</answer>", "Paris"),
    (r"\boxed{\text{no solution}}", "No solution"),
    ("The answer is yes.", "The answer is yes."),
    ("first\nsecond", "first\nsecond"),
    (r"\boxed{x = 1, x = \frac{-1 \pm \sqrt{13}}{4}}", r"$x = 1, x = \frac{-1 \pm \sqrt{13}}{4}$"),
    ("½", "½"),
    (r"\frac{1}{0}", r"\frac{1}{0}"),
    ("2 6 7\n1 9 5", "2 6 7\n1 9 5"),
    ("<answer>2 6 7 1 9 5</answer>", "2 6 7\n1 9 5"),
    ('[["a", "b"], ["c"]]', '[["a", "b"], ["c"]]'),
    ("[[0,1],[1,0]]", "[[0,1],[1,0]]"),
    ("0x3d2d", "0x3d2d"),
    ("✅❌", "✅❌"),
    ("3*Integral(x**3*cos(3*x), x) + C", "3*Integral(x**3*cos(3*x), x) + C"),
    ("7*X**9 - 2*X**6", "7*X**9 - 2*X**6"),
    ("$7X^9 - 2X^6$", "7*X**9 - 2*X**6"),
    ("12:30", "12:30"),
    ("The answer is 12:30.", "12:30"),
    ("March  3", "March 3"),
    ("x", "x"),
    ("$x$", "x"),
    ("答案", "答案"),
]

WRONG = [
    ("the answer is 12", "1"),  # a number that occurs in another
    ("1 2 3 4 5 6 7 8 9", "4"),
    ("1 2 3 4 5 6 7 8 9", "45"),
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
    ("The calculation shows 42 but I put <answer>43</answer>", "42"),
    ("<answer>not a number</answer> but 42 is right", "42"),
    ("<answer></answer> 42", "42"),
    ("<answer>3x</answer>", "3"),
    ("<answer>12</answer> no, <answer>13</answer>", "12"),
    ("<think>maybe the answer is 42, let me check", "42"),
    (r"<think>so \boxed{42}", "42"),
    ("<think>42</think>", "42"),
    ("<think>42</think> 43 <think>44", "44"),
    (r"<think>\boxed{5}</think> The answer is 6", "5"),
    ("<think><answer>42</answer></think> 43", "42"),
    ("The answer is 1e6", "1"),
    ("1", "1e6"),
    ("111", "0,111"),
    (r"$1 + \frac{1}{\mathrm{e}}$", r"$1 - \frac{1}{\mathrm{e}}$"),
    ("2^10", "5"),
    ("6 2 7", "2 6 7"),
    ("[[1,0],[0,1]]", "[[0,1],[1,0]]"),
    ("0", "0x3d2d"),
    ("6", "7*X**9 - 2*X**6"),
    ("$2^{10}$", "5"),
    ("1/0", "5"),
    ("1" * 5000, "5"),
    ("5", "1" * 5000),
    ("1,22", "22"),
    ("0", "1 000"),
    ("3x", "3"),
    ("The answer is not A", "A"),
    ("B", "A"),
    (r"\boxed{A} \boxed{B}", "B"),
    ("Athens", "A"),
    ("A and B", "A"),
    ("seY", "Yes"),
    ("The answer is no. Yes", "Yes"),
    ("I think Paris is nice", "Paris"),
    ("12", "12:30"),
    ("12:31", "12:30"),
    ("", "Yes"),
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


def test_math_compares_integers_to_its_precision_too() -> None:
    assert judge(Math(MathSettings()), "41.9999999", "42") == 1.0
    assert judge(Math(MathSettings()), "$x = 42.0000001$", "42") == 1.0
    assert judge(Math(MathSettings()), "42.00001", "42") == 0.0
    assert judge(Math(MathSettings(precision=3)), "<answer>42.0001</answer>", "42") == 1.0
    assert judge(Math(MathSettings(precision=0)), "$16/5$", "3") == 1.0
    assert judge(Math(MathSettings(precision=0)), "16/5", "4") == 0.0
    assert judge(Math(MathSettings(precision=2)), "1e-9", "0") == 1.0


def test_math_knows_a_thought_that_the_prompt_opened() -> None:
    math = Math(MathSettings())
    assert judge(math, r"\boxed{42}", "42", prompt="1+1=<think>\n") == 0.0
    assert judge(math, "41 or 42</think>42", "42", prompt="1+1=<think>\n") == 1.0


def test_math_may_search_the_reasoning_and_take_other_tags() -> None:
    anywhere = Math(MathSettings(thinking_tag=None, answer_tag=None))
    assert judge(anywhere, r"<think>so \boxed{42}", "42") == 1.0
    assert judge(anywhere, "<answer>41</answer> or \\boxed{42}", "42") == 1.0
    own = Math(MathSettings(thinking_tag="reasoning", answer_tag="solution"))
    assert judge(own, "<reasoning>41</reasoning><solution>42</solution>", "42") == 1.0
    assert judge(own, "<reasoning>42", "42") == 0.0


def test_math_pays_nothing_for_an_answer_that_was_cut_off() -> None:
    task = Task("t", "?", answer="4")
    cut = RewardSample(task, "?", "<answer>4", finish_reason="length")
    assert Math(MathSettings())(cut) == 0.0


def test_math_pays_for_each_answer_as_its_own_completion() -> None:
    more = ["1,2", "3 or 4", r"x \in [1,2)", "10^{20}", "n(n+1)/2"]
    answers = [*(answer for _, answer in RIGHT), *more]
    tasks = [Task(f"rows.jsonl:{row}", "?", answer=text) for row, text in enumerate(answers)]
    check_math(MathSettings(), bare_context(), tasks)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("???", "answer '???' is no mathematics"),
        (None, "has no answer to compare with"),
    ],
)
def test_math_refuses_an_answer_that_does_not_pay_before_a_run(
    answer: str | None, said: str
) -> None:
    rows = ["46", "Paris", r"\frac{1}{2}", answer, "1e6", r"\sqrt{2}"]
    tasks = [Task(f"rows.jsonl:{row}", "?", answer=text) for row, text in enumerate(rows, 1)]
    with pytest.raises(DataError) as caught:
        check_math(MathSettings(), bare_context(), tasks)
    assert str(caught.value) == f"task 'rows.jsonl:4'{'' if answer is None else ':'} {said}"


def test_plain_numbers_and_words_cost_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_check, "try_reward", None)
    answers = ["46", "-1.5e-3", "1,234", "Paris", "so 48/2 = 24\n#### 24"]
    check_math(MathSettings(), bare_context(), [Task("t", "?", answer=text) for text in answers])


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
