"""Runs: their folders, stages, steps, checkpoints and records; ``forge run`` and its neighbours."""
