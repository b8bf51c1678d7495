"""Needs a package that nobody has."""

import acme_engine_that_is_not_installed  # noqa: F401
