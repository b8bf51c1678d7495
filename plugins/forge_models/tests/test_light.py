"""Settings and checks of plugins import this package: torch waits until a model is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forge_models

HEAVY = ("torch", "transformers", "tokenizers", "safetensors")


def test_nothing_heavy_is_imported_with_it() -> None:
    folder = Path(forge_models.__file__).parent
    names = sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")
    assert "folder" in names
    imports = "".join(f"import forge_models.{name}\n" for name in names)
    code = f"{imports}import sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "[]"
