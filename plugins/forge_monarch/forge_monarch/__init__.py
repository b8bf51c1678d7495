"""Forge plugin: runtime on Monarch meshes."""

from forge_monarch.actor_component import MonarchActor

__all__ = ["MonarchActor"]
