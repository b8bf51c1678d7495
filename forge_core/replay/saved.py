"""A replay buffer's groups in a checkpoint: JSON, so that reading it runs no code.

Tasks are not written but for their ids: the dataset has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from forge_core.contracts.types import Completion, Episode, Group, Message, Task, Turn


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
        "turns": [asdict(turn) for turn in episode.turns],
        "messages": [asdict(message) for message in episode.messages],
    }


def _episode(task: Task, fields: Mapping[str, Any]) -> Episode:
    turns = [_turn(turn) for turn in fields["turns"]]
    messages = [Message(**message) for message in fields["messages"]]
    return Episode(task=task, **{**fields, "turns": turns, "messages": messages})


def _turn(fields: Mapping[str, Any]) -> Turn:
    completion = fields["completion"]
    return Turn(
        kind=fields["kind"],
        tokens=fields["tokens"],
        completion=Completion(**completion) if completion is not None else None,
    )
