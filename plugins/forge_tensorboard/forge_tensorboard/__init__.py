"""Tracker ``tensorboard``: a run's scalars for TensorBoard."""
