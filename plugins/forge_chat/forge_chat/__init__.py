"""``forge generate``, ``chat`` and ``serve``: text from a model or a run's checkpoint."""
