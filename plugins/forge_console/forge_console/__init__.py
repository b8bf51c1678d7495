"""Tracker ``console``: a live view of a run on a terminal, plain lines in a log."""
