"""Forge plugin: weight transport on TorchStore."""
