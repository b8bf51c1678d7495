"""Configs: YAML in layers, every value with its provenance, each section parsed once."""
