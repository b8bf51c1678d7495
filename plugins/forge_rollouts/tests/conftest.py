"""Examples are not judged by the clock: one that waits for a busy machine would fail."""

from hypothesis import settings

settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")
