"""Forge plugin: runtime on Monarch meshes."""
