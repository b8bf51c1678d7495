"""Optimizers of torch and learning-rate schedules, as components."""
