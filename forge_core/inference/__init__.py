"""Text from a model or a run's checkpoint: what ``forge generate`` and ``forge chat`` do."""
