"""For people who write plugins: pytest fixtures (``plugin``) and conformance suites.

Installed with the kernel; pytest finds the fixtures by itself.
"""
