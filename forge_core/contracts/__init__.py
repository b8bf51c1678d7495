"""The lowest level: what plugins and the kernel agree on. Imports nothing else of the kernel.

``forge_core`` re-exports it, and that is the public API.
"""
