"""A component can be a Monarch actor: ``build`` returns ``MonarchActor(MyActor, ...)``."""

from __future__ import annotations

from typing import Any


class MonarchActor:
    """What ``build`` returns to have an actor class of your own spawned on the replica's mesh.

    Every rank gets one instance. The service's methods are the class's endpoints, called as any
    program calls them: what they get and return is pickled by Monarch, so meshes and ports travel.

    Args:
        actor: a ``monarch.actor.Actor`` class.
        args: of its constructor.
        kwargs: of its constructor.
    """

    def __init__(self, actor: type[Any], *args: Any, **kwargs: Any) -> None:
        self.actor = actor
        self.args = args
        self.kwargs = kwargs
