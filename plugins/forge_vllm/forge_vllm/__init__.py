"""Forge plugin: generator on the vLLM engine."""
