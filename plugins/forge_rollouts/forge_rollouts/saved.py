"""A replay buffer's groups in a checkpoint: JSON, so that reading it runs no code.

Tasks are not written but for their ids: the dataset has them. Token data are base64 of their
little-endian numbers, exact and a third of the digits; a completion's tokens are those of its turn.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from forge_core import Completion, Episode, Group, Message, Task, Turn


def to_json(groups: Mapping[int, Group]) -> str:
    """The groups by place. Numbers come back as they were, to the last bit."""
    return json.dumps(
        [
            {
                "place": place,
                "task": group.task.id,
                "episodes": [_described(episode) for episode in group.episodes],
            }
            for place, group in groups.items()
        ]
    )


def from_json(text: str, task_at: Callable[[int], Task]) -> tuple[dict[int, Group], list[str]]:
    """What ``to_json`` wrote.

    Args:
        text: of the file.
        task_at: the task at a place of the run's order.

    Returns:
        the groups by place, and the ids of tasks that are no longer at theirs (the run goes on with
        other data): their groups are left out.
    """
    groups: dict[int, Group] = {}
    gone: list[str] = []
    for entry in json.loads(text):
        task = task_at(entry["place"])
        if task.id != entry["task"]:
            gone.append(entry["task"])
            continue
        episodes = [_episode(task, described) for described in entry["episodes"]]
        groups[entry["place"]] = Group(task, episodes)
    return groups, gone


def _described(episode: Episode) -> dict[str, Any]:
    fields = {name: getattr(episode, name) for name in Episode.__slots__ if name != "task"}
    return {
        **fields,
        "turns": [_written(turn) for turn in episode.turns],
        "messages": [asdict(message) for message in episode.messages],
    }


def _episode(task: Task, fields: Mapping[str, Any]) -> Episode:
    turns = [_turn(turn) for turn in fields["turns"]]
    messages = [Message(**message) for message in fields["messages"]]
    return Episode(task=task, **{**fields, "turns": turns, "messages": messages})


def _written(turn: Turn) -> dict[str, Any]:
    said = turn.completion
    completion = None
    if said is not None:
        completion = {
            "logprobs": _text(said.logprobs, "<f4"),
            "versions": _text(said.versions, "<i4"),
            "finish_reason": said.finish_reason,
        }
    return {"kind": turn.kind, "tokens": _text(turn.tokens, "<i4"), "completion": completion}


def _turn(fields: Mapping[str, Any]) -> Turn:
    tokens, said = _numbers(fields["tokens"], "<i4"), fields["completion"]
    if said is None:
        return Turn(fields["kind"], tokens)
    completion = Completion(
        tokens,
        _numbers(said["logprobs"], "<f4"),
        _numbers(said["versions"], "<i4"),
        said["finish_reason"],
    )
    return Turn(fields["kind"], completion.tokens, completion)


def _text(array: npt.NDArray[Any], dtype: str) -> str:
    return base64.b64encode(array.astype(dtype, copy=False).tobytes()).decode()


def _numbers(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(bytearray(base64.b64decode(text)), dtype)
