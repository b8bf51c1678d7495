"""What the kernel itself contributes, through the same hooks as any plugin."""

from __future__ import annotations
