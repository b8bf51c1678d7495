"""The trainer ``torch``."""
