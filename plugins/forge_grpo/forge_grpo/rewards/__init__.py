"""Verifiable rewards, one file each."""
