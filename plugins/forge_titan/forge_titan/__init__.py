"""Forge plugin: trainer on TorchTitan."""
