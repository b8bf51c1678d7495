"""Needs a package that does not exist."""

import acme_engine_that_is_not_installed  # noqa: F401
