"""Supervised losses, one file each."""
