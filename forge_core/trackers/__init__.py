"""Listeners to a run: ``console`` for a person, ``jsonl`` for programs, ``tensorboard``."""
