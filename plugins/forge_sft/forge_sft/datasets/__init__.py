"""Datasets of written examples, one file each."""
