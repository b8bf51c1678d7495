"""Puts the example on the path, as ``pip install -e`` would."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
