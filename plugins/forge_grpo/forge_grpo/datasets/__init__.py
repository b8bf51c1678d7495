"""Procedural datasets, one file each."""
