"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations
