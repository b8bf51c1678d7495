"""Runtimes that come with the kernel: places where replicas live."""
