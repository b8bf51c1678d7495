"""The kernel's version. Plugins say in their metadata which versions they were built for."""

__version__ = "0.1.0"
