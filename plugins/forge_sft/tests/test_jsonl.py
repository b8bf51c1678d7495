"""Dataset ``jsonl``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import DataError, Dataset, Forge, Message, Selection, Task
from forge_sft import plugin
from forge_sft.datasets.jsonl import Jsonl
from forge_sft.settings import JsonlSettings
from forge_testing.conformance.dataset import DatasetConformance

ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "response": "2"},
    {"prompt": "1+2=", "answer": "3", "level": 5},
    {"messages": [{"role": "user", "content": "1+3?"}, {"role": "assistant", "content": "4"}]},
    {"prompt": "naïve 数学 🙂\n", "response": ""},
]


class TestJsonl(DatasetConformance):
    @pytest.fixture
    def selection(self, tmp_path: Path, forge_app: Callable[..., Forge]) -> Selection[Dataset]:
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS))
        component = forge_app(plugin).plugins.catalog.get("dataset", "jsonl")
        return Selection(family="dataset", component=component, settings=JsonlSettings(path=file))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., list[Task]]:
    """``load(*lines, **settings)``: the tasks of a file of these lines."""

    def load(*lines: str | dict[str, Any] | bytes, **settings: Any) -> list[Task]:
        file = tmp_path / "rows.jsonl"
        encoded = [
            line
            if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]
        file.write_bytes(b"\n".join(encoded))
        data = Jsonl(JsonlSettings.model_validate({"path": file, **settings}))
        return [data[index] for index in range(len(data))]

    return load


def test_rows(load: Callable[..., list[Task]]) -> None:
    plain, answered, chat, unicode = load(*ROWS)
    assert plain == Task("rows.jsonl:1", "1+1=", response="2")
    assert answered == Task("rows.jsonl:2", "1+2=", answer="3", metadata={"level": 5})
    assert chat == Task("rows.jsonl:3", (Message("user", "1+3?"),), response="4")
    assert unicode == Task("rows.jsonl:4", "naïve 数学 🙂\n", response="")


def test_blank_lines_count_in_line_numbers_and_in_nothing_else(
    load: Callable[..., list[Task]],
) -> None:
    tasks = load("", json.dumps(ROWS[0]), "  \t", json.dumps(ROWS[1]), "", "")
    assert [task.id for task in tasks] == ["rows.jsonl:2", "rows.jsonl:4"]
    assert tasks[1].prompt == "1+2="


def test_windows_line_ends_and_a_byte_order_mark(load: Callable[..., list[Task]]) -> None:
    line = json.dumps(ROWS[0]).encode()
    tasks = load(b"\xef\xbb\xbf" + line + b"\r", line + b"\r", b"")
    assert [task.prompt for task in tasks] == ["1+1=", "1+1="]


def test_fields_may_be_called_otherwise(load: Callable[..., list[Task]]) -> None:
    row = {"question": "1+1=", "solution": "one and one", "final": "2", "prompt": "not this"}
    (task,) = load(row, prompt="question", response="solution", answer="final")
    assert (task.prompt, task.response, task.answer) == ("1+1=", "one and one", "2")
    assert task.metadata == {"prompt": "not this"}


def test_an_input_beside_an_instruction_is_not_lost(load: Callable[..., list[Task]]) -> None:
    row = {"instruction": "Add.", "input": "1+1", "output": "2"}
    names: dict[str, Any] = {"prompt": "instruction", "response": "output"}
    with pytest.raises(DataError, match=r"rows\.jsonl:1: 'input' would be lost"):
        load(row, **names)
    assert load({**row, "input": ""}, **names)[0].prompt == "Add."
    assert load(row, **names, ignore=["input"])[0].metadata == {"input": "1+1"}


def test_null_is_the_same_as_missing(load: Callable[..., list[Task]]) -> None:
    (task,) = load({"prompt": "1+1=", "response": None, "answer": "2", "messages": None, "x": None})
    assert task == Task("rows.jsonl:1", "1+1=", answer="2")


def test_a_chat(load: Callable[..., list[Task]]) -> None:
    chat = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": []},
    ]
    (task,) = load({"messages": chat, "prompt": "1+1?", "answer": "2", "level": 5})
    assert isinstance(task.prompt, tuple)
    assert [message.content for message in task.prompt] == ["Add.", "1+1?", "2", "Sure?"]
    assert (task.response, task.answer) == ("Yes.", "2")
    assert task.metadata == {"level": 5, "prompt": "1+1?"}


def test_a_chat_may_end_with_the_user_where_an_answer_is_known(
    load: Callable[..., list[Task]],
) -> None:
    (task,) = load({"messages": [{"role": "user", "content": "1+1?"}], "answer": "2"})
    assert task == Task("rows.jsonl:1", (Message("user", "1+1?"),), answer="2")


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def test_tool_calls_reasoning_and_tools_are_kept(load: Callable[..., list[Task]]) -> None:
    chat = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2", "thinking": "easy"},
    ]
    tasks = load(
        {"messages": chat, "tools": [TOOL]}, {"messages": chat, "tools": json.dumps([TOOL])}
    )
    for task in tasks:
        assert task.tools == (TOOL,)
        assert task.metadata == {}
        call, result = task.prompt[1:]
        assert isinstance(call, Message)
        # Templates want the arguments as an object; OpenAI's format has them as JSON text.
        parsed = {**CALL, "function": {"name": "add", "arguments": {"a": 1}}}
        assert (call.content, call.extra) == (
            "",
            {"tool_calls": [parsed], "reasoning_content": "hm"},
        )
        assert result == Message("tool", "2", {"tool_call_id": "c1"})
        assert task.response == Message("assistant", "2", {"thinking": "easy"})


def weighted(*weights: int | None) -> list[dict[str, Any]]:
    """A chat whose assistant messages have these weights; None: no weight."""
    chat = []
    for number, weight in enumerate(weights):
        chat += [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": f"answer {number}"},
        ]
        if weight is not None:
            chat[-1]["weight"] = weight
    return chat


@pytest.mark.parametrize(
    ("weights", "learned"),
    [((0, 1), 1), ((0, None), 1), ((1, 0), 0), ((None, 0, 0), 0), ((0, 1, 0), 1), ((1,), 0)],
)
def test_a_message_of_weight_0_is_not_learned(
    load: Callable[..., list[Task]], weights: tuple[int | None, ...], learned: int
) -> None:
    (task,) = load({"messages": weighted(*weights)})
    assert task.response == f"answer {learned}"
    assert len(task.prompt) == 2 * learned + 1
    assert not any(message.extra for message in task.prompt if isinstance(message, Message))


def test_what_is_to_be_ignored_is_said(load: Callable[..., list[Task]]) -> None:
    chat = weighted(1, 1)
    chat[0]["timestamp"] = 5
    (task,) = load(
        {"messages": chat, "system": "linux", "tools": "hammer"},
        ignore=["weight", "timestamp", "system", "tools"],
    )
    assert task.response == "answer 1"
    assert task.metadata == {"system": "linux", "tools": "hammer"}
    assert not any(message.extra for message in task.prompt if isinstance(message, Message))


def test_other_fields_that_are_empty_are_no_matter(load: Callable[..., list[Task]]) -> None:
    (task,) = load({"prompt": "?", "response": "!", "system": "", "tools": [], "images": []})
    assert task.response == "!"


USER = {"role": "user", "content": "?"}
SPOKEN = {"role": "assistant", "content": "!"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: "),
        ("prompt,response", "not JSON: "),
        (b'{"prompt": "\xff"}', "not JSON: 'utf-8' codec"),
        ("[" * 100_000, "not JSON: "),
        ("[1]", "a JSON object is needed, not list"),
        ("null", "a JSON object is needed, not NoneType"),
        ("{}", "no field 'prompt' (it has: nothing)"),
        ({"question": "?", "response": "!"}, "no field 'prompt' (it has: question, response)"),
        ({"prompt": "?", "solution": "!"}, "neither 'response' nor 'answer' (it has: prompt, sol"),
        ({"prompt": "?", "answer": None}, "neither 'response' nor 'answer' (it has: prompt)"),
        ({"prompt": 5, "response": "!"}, "'prompt' is to be text, not int"),
        ({"prompt": "?", "response": ["!"]}, "'response' is to be text, not list"),
        ({"prompt": "?", "answer": 5}, "'answer' is to be text, not int"),
        ({"messages": "?"}, "'messages' is to be a list of messages"),
        ({"messages": []}, "'messages' is to be a list of messages"),
        ({"messages": [USER, "!"]}, "messages[1] needs a role (system, user, assistant, tool)"),
        ({"messages": [{"role": "human", "content": "?"}]}, "messages[0] needs a role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0] needs a role"),
        ({"messages": [{"role": ["user"], "content": "?"}]}, "messages[0] needs a role"),
        ({"messages": [USER]}, "'messages' has no assistant message at its end to imitate, and"),
        ({"messages": [SPOKEN]}, "'messages' has nothing before the response"),
        ({"messages": [USER, SPOKEN], "answer": 5}, "'answer' is to be text, not int"),
        ({"messages": weighted(0)}, "messages: every assistant message has weight 0, so"),
        ({"messages": weighted(1, 1)}, "messages[1] has weight 1, but of a row only the last"),
        ({"messages": weighted(0.5)}, "messages[1]: weight is 0.5; 0 and 1 are allowed"),
        ({"messages": [{**USER, "weight": 1}, SPOKEN]}, "messages[0] has weight 1, but of a row"),
        ({"messages": [USER, {**SPOKEN, "tool_calls": "add"}]}, "messages[1]: 'tool_calls' must"),
        ({"messages": [USER, {**SPOKEN, "tool_calls": [{}]}]}, "messages[1]: each of 'tool_calls'"),
        (
            {"messages": [USER, {**SPOKEN, "tool_calls": [{"name": "f", "arguments": "x"}]}]},
            "messages[1]: the arguments of 'f' must be a JSON object",
        ),
        ({"messages": [USER, SPOKEN], "tools": "hammer"}, "'tools' must be a list of JSON schemas"),
        ({"prompt": "?", "response": "!", "tools": [TOOL]}, "'tools' needs a chat in 'messages'"),
        (
            {"prompt": "?", "response": "!", "system": "Be brief."},
            "'system' is not used, and other",
        ),
        ({"messages": [USER, SPOKEN], "images": ["a.png"]}, "'images' is not used, and other"),
        ({"prompt": "?", "answer": "!", "completion": "?!"}, "'completion' is not used, and other"),
    ],
    ids=str,
)
def test_a_wrong_line_is_named(
    load: Callable[..., list[Task]], tmp_path: Path, line: Any, message: str
) -> None:
    expected = f"{tmp_path / 'rows.jsonl'}:3: {message}"
    with pytest.raises(DataError, match="^" + re.escape(expected)) as caught:
        load(ROWS[0], "", line, ROWS[1])
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: No such file or directory"):
        Jsonl(JsonlSettings(path=tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="Is a directory"):
        Jsonl(JsonlSettings(path=tmp_path))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_an_error(load: Callable[..., list[Task]], text: str) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl: holds no row"):
        load(text)


def test_a_hundred_thousand_lines_are_quick(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    with file.open("w") as stream:
        for number in range(100_000):
            stream.write(f'{{"prompt": "What is {number}?", "response": "It is {number}."}}\n')
    started = time.perf_counter()
    data = Jsonl(JsonlSettings(path=file))
    assert len(data) == 100_000
    assert data[99_999].prompt == "What is 99999?"
    assert data[0].id == "many.jsonl:1"
    # About half a second on an idle core.
    assert time.perf_counter() - started < 15
