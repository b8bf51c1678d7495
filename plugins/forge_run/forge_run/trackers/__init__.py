"""The run's own record: tracker ``jsonl``, and its files read with what crashes do to them."""
