"""Environments, one file each."""
