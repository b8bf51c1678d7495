"""``forge config``: configs shown, explained and compared, and their JSON Schema."""
