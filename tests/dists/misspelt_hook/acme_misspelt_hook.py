"""The hook is called ``forge_generators``."""

from forge_core import hookimpl


@hookimpl
def forge_generator():
    yield from ()
