"""The replay buffer: each group once, in order, within the bound; and through a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_core import Completion, Episode, Group, Task, Turn
from forge_rollouts.buffer import ReplayBuffer, oldest_version
from forge_rollouts.saved import from_json, to_json
from forge_rollouts.settings import ReplayBufferSettings


def group_at(place: int, *versions: int) -> Group:
    """A group of one episode of one completion, a token for each version."""
    task = Task(id=f"task {place}", prompt="1+1=")
    completion = Completion([7] * len(versions), [-0.1] * len(versions), versions, "stop")
    turns = [Turn("prompt", [1, 2]), Turn("completion", completion.tokens, completion)]
    return Group(task, [Episode(task, turns)])


def test_groups_leave_in_the_order_of_places_however_they_came() -> None:
    buffer = ReplayBuffer(ReplayBufferSettings(max_staleness=0))
    for place in (2, 0, 5, 1):
        buffer.add(place, group_at(place, 0))
    assert list(buffer.take(3, current_version=0).groups) == [0, 1, 2]
    assert buffer.places() == [5]
    assert buffer.take(3, current_version=0).groups == {}


def test_what_is_too_old_is_dropped_and_told() -> None:
    buffer = ReplayBuffer(ReplayBufferSettings(max_staleness=2))
    buffer.add(0, group_at(0, 1, 5))
    buffer.add(1, group_at(1, 3, 3))
    buffer.add(2, group_at(2, 0))
    taken = buffer.take(2, current_version=5)
    assert list(taken.groups) == [1]
    assert taken.dropped == (0,)
    assert buffer.places() == [2]  # it was not asked for yet


def test_the_oldest_token_counts() -> None:
    one, other = group_at(0, 4, 5), group_at(0, 3, 9)
    assert oldest_version(Group(one.task, [*one.episodes, *other.episodes])) == 3
    assert oldest_version(group_at(0)) == float("inf")


def test_a_place_has_one_group() -> None:
    buffer = ReplayBuffer(ReplayBufferSettings(max_staleness=0))
    buffer.add(3, group_at(3, 0))
    with pytest.raises(ValueError, match="already has a group at place 3"):
        buffer.add(3, group_at(3, 0))


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        ReplayBuffer(ReplayBufferSettings(max_staleness=-1))


@given(
    bound=st.integers(0, 3),
    arrivals=st.permutations(range(12)),
    versions=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    takes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(0, 3))),
)
def test_each_group_leaves_once_in_order_and_within_the_bound(
    bound: int, arrivals: list[int], versions: list[int], takes: list[tuple[int, int, int]]
) -> None:
    """Whatever order groups come in, and whenever they are asked for."""
    buffer = ReplayBuffer(ReplayBufferSettings(max_staleness=bound))
    arriving, left, dropped = list(arrivals), [], []
    current = 0
    for end, arrived, published in [*takes, (12, 12, 0)]:
        current += published
        for place in arriving[:arrived]:
            buffer.add(place, group_at(place, versions[place]))
        del arriving[:arrived]
        waiting = buffer.places()
        taken = buffer.take(end, current)
        assert list(taken.groups) == sorted(taken.groups)
        assert sorted([*taken.groups, *taken.dropped]) == [p for p in waiting if p < end]
        assert all(current - versions[place] <= bound for place in taken.groups)
        assert all(current - versions[place] > bound for place in taken.dropped)
        left += taken.groups
        dropped += taken.dropped
    assert sorted(left + dropped) == list(range(12))
    assert buffer.places() == []


numbers = st.floats(allow_nan=False, allow_infinity=False)
logprob = st.floats(width=32, max_value=0, allow_nan=False)
tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), logprob, st.integers(0, 9)), max_size=3)


@st.composite
def episodes(draw: st.DrawFn, task: Task) -> Episode:
    turns = [Turn("prompt", draw(st.lists(st.integers(0, 99))))]
    for sampled in draw(st.lists(tokens, max_size=2)):
        ids = [token for token, _, _ in sampled]
        logprobs = [logprob for _, logprob, _ in sampled]
        versions = [version for _, _, version in sampled]
        completion = Completion(ids, logprobs, versions, draw(st.sampled_from(["stop", "length"])))
        turns += [Turn("completion", ids, completion), Turn("observation", [1])]
    parts = draw(st.dictionaries(st.text(max_size=3), numbers, max_size=2))
    return Episode(
        task,
        turns,
        prompt_text=draw(st.text(max_size=5)),
        completion_texts=draw(st.lists(st.text(max_size=5), max_size=2)),
        truncated=draw(st.booleans()),
        rewards=parts,
        reward=draw(numbers),
        failures=dict.fromkeys(parts, "deadline of 10 s passed"),
    )


@given(data=st.data(), places=st.sets(st.integers(0, 99), max_size=3))
def test_a_checkpoint_gives_back_what_it_took(data: st.DataObject, places: set[int]) -> None:
    tasks = {place: Task(id=str(place), prompt="1+1=", metadata={"x": {1}}) for place in places}
    buffer = ReplayBuffer(ReplayBufferSettings(max_staleness=1))
    for place in places:
        group = Group(tasks[place], data.draw(st.lists(episodes(tasks[place]), max_size=2)))
        buffer.add(place, group)
    groups, gone = from_json(to_json(buffer.state()), tasks.__getitem__)
    assert gone == []
    other = ReplayBuffer(ReplayBufferSettings(max_staleness=1))
    other.load(groups)
    assert other.state() == buffer.state()
    assert list(other.state()) == sorted(places)


def test_a_checkpoint_of_other_data_leaves_those_groups_out() -> None:
    text = to_json({4: group_at(4, 0), 5: group_at(5, 0)})
    tasks = {4: Task(id="another", prompt=""), 5: Task(id="task 5", prompt="")}
    groups, gone = from_json(text, tasks.__getitem__)
    assert list(groups) == [5]
    assert gone == ["task 4"]
