"""Fault injection: tracker ``chaos`` disturbs a run, ``python -m forge_chaos RUN`` checks it."""
