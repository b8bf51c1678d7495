"""``python -m forge_core`` is the ``forge`` command."""

from forge_core.cli import entry_point

if __name__ == "__main__":
    entry_point()
